"""Reads the Host header and client addresses, to find the circuit and the sender of a request."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from ipaddress import ip_address

_HOST_PATTERN = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)(?::([1-9][0-9]{0,4}))?")
_LABEL_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def split_host(host: str) -> tuple[str, int | None] | None:
    """Returns the lower-case name or address and the port of a Host header. Returns None if the header is malformed.

    A trailing dot, user information, empty labels and ports out of range are refused.
    """
    match = _HOST_PATTERN.fullmatch(host)
    if match is None:
        return None
    port = int(match[2]) if match[2] else None
    if port is not None and port > 65535:
        return None
    return match[1].lower(), port


def subdomain_of(host: str, domain: str) -> str | None:
    """Returns the label of ``host`` below ``domain``, which begins with a dot.

    Returns None unless there is exactly one label.
    """
    host_and_port = split_host(host)
    if host_and_port is None or not host_and_port[0].endswith(domain):
        return None
    label = host_and_port[0][: -len(domain)]
    return label if _LABEL_PATTERN.fullmatch(label) else None


def is_same_origin(origin: str, host: str, schemes: Sequence[str] = ("http", "https")) -> bool:
    """Returns True if an Origin header names the host that the request is for. The origin ``null`` never does."""
    scheme, separator, authority = origin.partition("://")
    if not separator or scheme not in schemes:
        return False
    request_host, origin_host = split_host(host), split_host(authority)
    if request_host is None or origin_host is None or request_host[0] != origin_host[0]:
        return False
    default_port = _DEFAULT_PORTS[scheme]
    return (origin_host[1] or default_port) == (request_host[1] or default_port)


def client_address(peer_address: str, forwarded_for: Sequence[str], is_trusted: Callable[[str], bool]) -> str:
    """Returns the address of the client that sent a request.

    Behind trusted proxies, it is the last address in ``X-Forwarded-For`` that is not a trusted proxy. Something that is
    no address ends the search.
    """
    address = peer_address
    addresses = [address_text.strip() for line in forwarded_for for address_text in line.split(",")]
    while addresses and is_trusted(address):
        address_text = addresses.pop()
        try:
            address = str(ip_address(address_text))
        except ValueError:
            break
    return address
