"""The header of the PROXY protocol by which HAProxy says whose connection it hands back."""

from __future__ import annotations

import asyncio
import socket

import pytest

from ai.backend.agent.gateway.proxy_header import ProxyHeader, parse_body, read_header
from ai.backend.common.errors import InvalidInput

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
VALUES = b"\x02\x00\x04rabc" + b"\x05\x00\x06AB01.3"
TOLD = ProxyHeader(authority="rabc", unique_id="AB01.3")


@pytest.mark.parametrize(("family", "addresses"), [(0, 0), (1, 12), (2, 36), (3, 216)])
def test_addresses_are_passed_over(family: int, addresses: int) -> None:
    assert parse_body(family, bytes(addresses) + VALUES) == TOLD


def test_what_is_left_out_is_empty() -> None:
    assert parse_body(0, b"") == ProxyHeader(authority="", unique_id="")
    assert parse_body(0, b"\x20\x00\x05\x07\x00\x00\x00\x00") == ProxyHeader(authority="", unique_id="")


@pytest.mark.parametrize(
    ("family", "body"),
    [
        (4, b""),
        (0, b"\x02"),
        (0, b"\x02\x00"),
        (0, b"\x02\x00\x09rabc"),
        (0, b"\x02\x00\x02\xff\xff"),
        (1, b"\x02\x00"),
    ],
)
def test_what_is_malformed_is_refused(family: int, body: bytes) -> None:
    with pytest.raises(InvalidInput):
        parse_body(family, body)


async def _read(sent: bytes, *, more: bytes = b"") -> tuple[ProxyHeader, bytes]:
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        far.sendall(sent + more)
        far.shutdown(socket.SHUT_WR)
        header = await asyncio.wait_for(read_header(near), 5)
        return header, near.recv(100)


async def test_not_a_byte_after_the_header_is_taken() -> None:
    head = SIGNATURE + b"\x20\x00" + len(VALUES).to_bytes(2, "big")
    assert await _read(head + VALUES, more=b"GET /") == (TOLD, b"GET /")
    for broken in (b"", head[:9], head + VALUES[:-1], b"GET / HTTP/1.1\r\n\r\n", SIGNATURE + b"\x10\x00\x00\x00"):
        with pytest.raises(InvalidInput):
            await _read(broken)
