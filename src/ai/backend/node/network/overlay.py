"""Makes overlay networks: addresses of sessions' networks, and VXLAN devices whose peers are configured, never learnt.

A device's alias has the mark of its owner, the session, and a digest of the overlay that it was made from.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from ai.backend.common.errors import CreationDeferred, CreationDenied
from ai.backend.node.linux.netlink import EVERYBODY, RouteSocket
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import Overlay

LONGEST_PREFIX = 28
_RESERVED_ADDRESSES = 3  # the network itself, its gateway, its broadcast address
_SYSCTL_FOLDER = Path("/proc/sys/net")
_ISOLATION_SYSCTLS = ("ipv6/conf/{}/disable_ipv6", "ipv4/conf/{}/rp_filter")
"""The kernel settings that isolate a device from its host. Besides, the device does not answer ARP, and the host
ignores what arrives there.
"""
_PROBE_PORT, _PROBE_MTU = 4789, 1450
_NO_SHORTCUT_REASON = "the kernel (older than Linux 6.5) leads no network from one agent to another of the same node"


def prefix_for(host_count: int) -> int:
    """Returns the prefix length of a network with room for this many hosts and a gateway."""
    return min(LONGEST_PREFIX, 32 - (host_count + _RESERVED_ADDRESSES - 1).bit_length())


def addresses_of(subnet: IPv4Network, hosts: Sequence[str]) -> dict[str, str]:
    """Assigns an address to each host name in order; the first address is the gateway's."""
    return {host: str(subnet[host_number]) for host_number, host in enumerate(hosts, 2)}


def busy_networks(routes: Path = Path("/proc/net/route")) -> list[IPv4Network]:
    """Returns the networks to which this host has routes, except the default route."""
    networks: list[IPv4Network] = []
    try:
        route_lines = routes.read_text().splitlines()[1:]
    except OSError:
        return networks
    for line in route_lines:
        fields = line.split()
        if len(fields) > 7 and fields[7] != "00000000":
            address_bytes, mask_bytes = (bytes.fromhex(fields[field_index])[::-1] for field_index in (1, 7))
            prefix_length = bin(int.from_bytes(mask_bytes)).count("1")
            networks.append(IPv4Network((int(IPv4Address(address_bytes)), prefix_length), strict=False))
    return networks


def mac_of(address: str) -> str:
    """Returns the hardware address for an IPv4 address of a session's network, so that ARP is not needed."""
    return ":".join(f"{byte:02x}" for byte in b"\x02\x42" + IPv4Address(address).packed)


def isolate_from_host(name: str) -> None:
    """Sets a session's network device so that the host accepts no packets from the device.

    Turns IPv6 off and strict reverse-path filtering on. Does nothing where the process may not write the kernel's
    settings.
    """
    for path in _ISOLATION_SYSCTLS:
        with suppress(OSError):
            (_SYSCTL_FOLDER / path.format(name)).write_text("1")


def device_name(owner_mark: str, session_text: str, end_suffix: str) -> str:
    """Returns the name of a network device, at most 15 characters."""
    return "bai" + sha256(f"{owner_mark}{session_text}".encode()).hexdigest()[:10] + end_suffix


def why_no_overlays(name: str, *, within_node: bool = False) -> str:
    """Returns the reason that the Linux kernel cannot make VXLAN devices. Returns an empty text if it can make them.

    With ``within_node`` also peers on this host must be reachable. ``name`` is the name of a device for the trial,
    which nobody else uses.
    """
    trial_vni = 1 + int(sha256(name.encode()).hexdigest()[:5], 16)
    try:
        with RouteSocket() as route:
            try:
                route.add_vxlan(name, trial_vni, "127.0.0.1", _PROBE_PORT, _PROBE_MTU)
                if within_node and not route.has_no_local_bypass(name):
                    return _NO_SHORTCUT_REASON
            finally:
                route.remove(name)
    except OSError as error:
        return f"the kernel makes no network devices over several nodes (vxlan): {error.strerror or error}"
    return ""


def create_device(name: str, alias_prefix: str, overlay: Overlay, *, bridge: str = "") -> None:
    """Creates an overlay's VXLAN device, as a port of ``bridge`` if named; replaces another device of the name.

    ``alias_prefix`` begins its alias. Idempotent.

    Raises:
        CreationDeferred: the number is in use here. OSError: the kernel refuses, or the address is not of this node.
        CreationDenied: a peer is on this node, and this kernel does not lead there.
    """
    new_alias = f"{alias_prefix} {sha256(repr(overlay).encode()).hexdigest()[:16]}"
    with RouteSocket() as route:
        present_alias = route.links().get(name)
        if present_alias is not None and present_alias != new_alias:
            route.remove(name)
        if present_alias != new_alias:
            route.mtu_at(overlay.local[0])
            try:
                route.add_vxlan(name, overlay.vni, *overlay.local, overlay.mtu)
            except FileExistsError:
                raise CreationDeferred(f"another network here has the number {overlay.vni}") from None
            if any(
                peer_address[0] == overlay.local[0] for peer_address in overlay.peers.values()
            ) and not route.has_no_local_bypass(name):
                route.remove(name)
                raise CreationDenied(_NO_SHORTCUT_REASON)
            route.set_alias(name, new_alias)
            crash_point("network.made")
        for peer_address in dict.fromkeys(overlay.peers.values()):
            route.add_forwarding_entry(name, EVERYBODY, *peer_address)
        for host, peer_address in overlay.peers.items():
            route.add_forwarding_entry(name, mac_of(overlay.addresses[host]), *peer_address)
        isolate_from_host(name)
        if bridge:
            route.set_master(name, bridge)
        route.set_up(name, arp=False)


def marked_devices(alias_prefix: str) -> dict[str, str]:
    """Returns the network devices whose alias begins with ``alias_prefix``, with the alias's next word by device name.

    Raises OSError.
    """
    with RouteSocket() as route:
        links = route.links().items()
    return {
        name: alias.removeprefix(alias_prefix).partition(" ")[0]
        for name, alias in links
        if alias.startswith(alias_prefix)
    }
