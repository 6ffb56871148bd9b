"""Parses networks and matches addresses against them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


MAX_NETWORK_LENGTH = 64
"""The maximum number of characters; the longest address with its prefix has 49."""

_IPV6_CLIENT_PREFIX = 64
"""The bits of an IPv6 address that name one client; it chooses the others freely."""


def client_of(address: str) -> str:
    """Returns the identity of a client for limits: an IPv4 address, or the network of an IPv6 address."""
    try:
        ip_address = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # a unix socket has no address
        return address
    if isinstance(ip_address, ipaddress.IPv4Address):
        return address
    if ip_address.ipv4_mapped is not None:
        return str(ip_address.ipv4_mapped)
    return str(ipaddress.ip_network((ip_address.packed[: _IPV6_CLIENT_PREFIX // 8] + bytes(8), _IPV6_CLIENT_PREFIX)))


def parse_network(text: str) -> Network:
    """Parses a network such as ``10.1.0.0/16``, or one address. Raises ValueError."""
    if len(text) > MAX_NETWORK_LENGTH:  # the cache below would store it
        raise ValueError(f"a network has {MAX_NETWORK_LENGTH} characters at most")
    return _parse(text.strip())


@lru_cache(maxsize=4_096)
def _parse(text: str) -> Network:
    network = ipaddress.ip_network(text, strict=False)
    if isinstance(network, ipaddress.IPv6Network) and network.network_address.ipv4_mapped and network.prefixlen >= 96:
        return ipaddress.IPv4Network((network.network_address.ipv4_mapped, network.prefixlen - 96))
    return network


def is_within(address: str, networks: Iterable[Network]) -> bool:
    """Returns True if an address is in one of the networks. An IPv4-mapped one counts as IPv4. Raises ValueError."""
    ip_address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip_address, ipaddress.IPv6Address) and ip_address.ipv4_mapped is not None:
        ip_address = ip_address.ipv4_mapped
    return any(ip_address.version == network.version and ip_address in network for network in networks)


def may_come_from(address: str, networks: Iterable[str]) -> bool:
    """Returns True if the address is in one of the networks, or if the list of networks is empty.

    A unix socket path is in no network.
    """
    allowed_networks = tuple(networks)
    if not allowed_networks:
        return True
    try:
        return is_within(address, map(parse_network, allowed_networks))
    except ValueError:
        return False
