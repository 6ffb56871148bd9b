"""Computes the sizes and addresses of sessions' networks, and the subnets that the host uses already."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

SMALLEST = 28
_NOT_HOSTS = 3  # the network itself, its gateway, its broadcast address


def prefix_for(hosts: int) -> int:
    """Return the prefix length of a network with room for this many hosts and a gateway."""
    return min(SMALLEST, 32 - (hosts + _NOT_HOSTS - 1).bit_length())


def addresses_of(subnet: IPv4Network, hosts: Sequence[str]) -> dict[str, str]:
    """Assign an address to each host name in order; the first address is the gateway's."""
    return {host: str(subnet[number]) for number, host in enumerate(hosts, 2)}


def busy_networks(routes: Path = Path("/proc/net/route")) -> list[IPv4Network]:
    """Return the networks to which this host has routes, without the default route."""
    networks: list[IPv4Network] = []
    try:
        lines = routes.read_text().splitlines()[1:]
    except OSError:
        return networks
    for line in lines:
        fields = line.split()
        if len(fields) > 7 and fields[7] != "00000000":
            address, mask = (bytes.fromhex(fields[place])[::-1] for place in (1, 7))
            length = bin(int.from_bytes(mask)).count("1")
            networks.append(IPv4Network((int(IPv4Address(address)), length), strict=False))
    return networks


def mac_of(address: str) -> str:
    """Return the hardware address that belongs to an IPv4 address of a session's network, so that ARP is not needed."""
    return ":".join(f"{byte:02x}" for byte in b"\x02\x42" + IPv4Address(address).packed)
