"""Addresses for networks of sessions: how large a network must be, who has which, and what the host uses already."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

SMALLEST = 28
_NOT_HOSTS = 3  # the network itself, its gateway, its broadcast address


def prefix_for(hosts: int) -> int:
    """The length of the prefix of a network with room for so many hosts and a gateway."""
    return min(SMALLEST, 32 - (hosts + _NOT_HOSTS - 1).bit_length())


def addresses_of(subnet: IPv4Network, hosts: Sequence[str]) -> dict[str, str]:
    """An address for each host name in order; the first one of the subnet is the gateway's."""
    return {host: str(subnet[number]) for number, host in enumerate(hosts, 2)}


def busy_networks(routes: Path = Path("/proc/net/route")) -> list[IPv4Network]:
    """The networks that this host has routes to, but for the default route."""
    found: list[IPv4Network] = []
    try:
        lines = routes.read_text().splitlines()[1:]
    except OSError:
        return found
    for line in lines:
        fields = line.split()
        if len(fields) > 7 and fields[7] != "00000000":
            address, mask = (bytes.fromhex(fields[place])[::-1] for place in (1, 7))
            length = bin(int.from_bytes(mask)).count("1")
            found.append(IPv4Network((int(IPv4Address(address)), length), strict=False))
    return found


def mac_of(address: str) -> str:
    """Return the hardware address of whoever has this IPv4 address in a session's network; so peers need not ask."""
    return ":".join(f"{byte:02x}" for byte in b"\x02\x42" + IPv4Address(address).packed)
