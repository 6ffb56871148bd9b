from __future__ import annotations

import socket
import struct

import pytest

from ai.backend.appproxy.worker.planes.embedded.behind_proxy import parse_proxy_header

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def header(family: int, addresses: bytes, version: int = 0x21) -> bytes:
    return SIGNATURE + struct.pack("!BBH", version, family, len(addresses)) + addresses


V4 = header(0x11, socket.inet_aton("10.0.0.7") + socket.inet_aton("127.0.0.1") + struct.pack("!HH", 40_000, 10_205))
V6 = header(0x21, 2 * socket.inet_pton(socket.AF_INET6, "2001:db8::1") + struct.pack("!HH", 1, 2))


@pytest.mark.parametrize(("data", "address", "port"), [(V4, "10.0.0.7", 10_205), (V6, "2001:db8::1", 2)])
def test_the_address_and_the_port_of_a_client_are_read(data: bytes, address: str, port: int) -> None:
    assert parse_proxy_header(data + b"GET") == (address, port, len(data))
    assert all(parse_proxy_header(data[:end]) is None for end in range(len(data)))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: a",
        header(0x11, b"short"),
        header(0x00, bytes(12)),
        header(0x31, bytes(216)),
        header(0x11, bytes(12), version=0x20),
        header(0x11, bytes(4096)),
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="header"):
        parse_proxy_header(data)
