"""Reads the header of the PROXY protocol, version 2, of HAProxy: https://www.haproxy.org/download/2.6/doc/proxy-protocol.txt"""

from __future__ import annotations

import asyncio
import socket

import msgspec

from ai.backend.common.errors import InvalidInput

_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_HEAD_BYTES = 16
_VERSION = 2
_ADDRESS_BYTES = {0: 0, 1: 12, 2: 36, 3: 216}
_AUTHORITY, _UNIQUE_ID = 2, 5


class ProxyHeader(msgspec.Struct, frozen=True):
    """Holds the values of a PROXY header. ``authority`` is the name that the client has sent in SNI."""

    authority: str
    unique_id: str


async def read_header(sock: socket.socket) -> ProxyHeader:
    """Takes the header, and not a byte more, from a connection. Raises InvalidInput, OSError."""
    head = await _read(sock, _HEAD_BYTES)
    if head[:12] != _SIGNATURE or head[12] >> 4 != _VERSION:
        raise InvalidInput("there is no header of the PROXY protocol")
    return parse_body(head[13] >> 4, await _read(sock, int.from_bytes(head[14:16], "big")))


def parse_body(family: int, body: bytes) -> ProxyHeader:
    """Reads the values of a PROXY header, and skips the addresses before them. Raises InvalidInput."""
    values: dict[int, str] = {}
    try:
        position = _ADDRESS_BYTES[family]
        if position > len(body):
            raise InvalidInput("the header of the PROXY protocol is cut off")
        while position < len(body):
            length = int.from_bytes(body[position + 1 : position + 3], "big")
            value = body[position + 3 : position + 3 + length]
            if len(value) < length or position + 3 > len(body):
                raise InvalidInput("the header of the PROXY protocol is cut off")
            values[body[position]] = value.decode("ascii")
            position += 3 + length
    except (KeyError, UnicodeDecodeError):
        raise InvalidInput("the header of the PROXY protocol cannot be read") from None
    return ProxyHeader(values.get(_AUTHORITY, ""), values.get(_UNIQUE_ID, ""))


async def _read(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        if not (piece := await asyncio.get_running_loop().sock_recv(sock, count - len(data))):
            raise InvalidInput("the connection has ended")
        data += piece
    return bytes(data)
