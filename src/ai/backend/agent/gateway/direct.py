"""Opens ports of the host that lead to services without TLS, where an operator has chosen direct addresses."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from typing import cast

from ai.backend.common.errors import Unavailable


class DirectPorts:
    """Opens ports of ``port_range`` that are free, in turn, beginning at a random port.

    A freed port is used again as late as possible, since nothing but the address tells clients of an old route from
    clients of the next route.
    """

    def __init__(self, host: str, port_range: tuple[int, int]) -> None:
        self._host = host
        self._first, last_port = port_range
        self._count = last_port - self._first + 1
        self._turn = secrets.randbelow(self._count)

    def take(self) -> socket.socket:
        """Returns a socket that listens at the next free port. Raises Unavailable if there is none."""
        for _ in range(self._count):
            port = self._first + self._turn
            self._advance_after(port)
            try:
                return self.bind(port)
            except OSError:
                continue
        raise Unavailable(f"no port of container.port-range is free at {self._host}")

    def bind(self, port: int) -> socket.socket:
        """Returns a socket that listens at ``port``, even if it was taken before a restart. Raises OSError."""
        self._advance_after(port)
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        return socket.create_server((self._host, port), family=family)

    def _advance_after(self, port: int) -> None:
        self._turn = (port - self._first + 1) % self._count


class DirectClient(asyncio.Protocol):
    """Represents the connection of a client without TLS. Its bytes are not read until its service is connected.

    Bytes that come before reading stops are kept, since uvloop begins to read after ``connection_made``. ``accept`` is
    called then, if there is one.
    """

    def __init__(self, accept: Callable[[asyncio.Transport], None] | None = None) -> None:
        self._accept = accept
        self._transport: asyncio.Transport
        self._received = b""
        self._has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # those of uvloop are none by their class
        self._transport = transport
        transport.pause_reading()
        if self._accept is not None:
            self._accept(transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._has_ended = True
        return True

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Gives the connection to another protocol, which first gets the bytes that have arrived already."""
        self._transport.set_protocol(protocol)
        if self._received:
            protocol.data_received(self._received)
        if self._has_ended:
            protocol.eof_received()
        self._transport.resume_reading()
