"""Accepts connections from another proxy of this worker, and reads the client's address from a PROXY header.

The header has version 2 of the PROXY protocol.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from ipaddress import ip_address
from typing import cast

_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_HEAD = struct.Struct("!12sBBH")
_VERSION_AND_PROXY = 0x21
_FAMILIES = {0x11: 4, 0x21: 16}
"""Bytes of an address, for TCP over IPv4 and IPv6."""
_MAX_BYTES = 2048

MakeProtocol = Callable[[str, int], asyncio.Protocol | None]
"""Returns the protocol for a client's address and the port that it connected to; None refuses it."""


def parse_proxy_header(data: bytes) -> tuple[str, int, int] | None:
    """Returns the client's address, the port that it connected to, and the header length.

    Returns None if the header is incomplete. Raises ValueError for anything else.
    """
    if len(data) < _HEAD.size:
        return None
    signature, version, family, payload_bytes = _HEAD.unpack_from(data)
    address_bytes = _FAMILIES.get(family)
    if signature != _SIGNATURE or version != _VERSION_AND_PROXY or address_bytes is None:
        raise ValueError("this is no header of the PROXY protocol for TCP")
    if payload_bytes < 2 * address_bytes + 4 or payload_bytes > _MAX_BYTES:
        raise ValueError("the header has no such length")
    if len(data) < _HEAD.size + payload_bytes:
        return None
    address_start = _HEAD.size
    (port,) = struct.unpack_from("!H", data, address_start + 2 * address_bytes + 2)
    return str(ip_address(data[address_start : address_start + address_bytes])), port, address_start + payload_bytes


class BehindProxy(asyncio.Protocol):
    """Reads the PROXY header of a new connection, then lets the protocol of the client's port serve the connection."""

    def __init__(self, make_protocol: MakeProtocol) -> None:
        self._accept = make_protocol
        self._received = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # those of uvloop are none by their class
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            header = parse_proxy_header(self._received)
        except ValueError:
            self._transport.abort()
            return
        if header is None:
            return
        address, port, header_bytes = header
        protocol = self._accept(address, port)
        if protocol is None:
            self._transport.abort()
            return
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if remaining_data := self._received[header_bytes:]:
            protocol.data_received(remaining_data)
