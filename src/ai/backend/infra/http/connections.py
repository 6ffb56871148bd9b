"""Limits the open connections of a server, for each client address and in total.

Connections are counted when the listening socket accepts them, before TLS and before a request, and are released when
their sockets are closed. asyncio's loop accepts by the socket's method; uvloop's does not, so there a task accepts.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import time
from asyncio.selector_events import BaseSelectorEventLoop
from collections import Counter
from collections.abc import Callable
from typing import Any, Self, cast

import msgspec
from aiohttp import web

from ai.backend.infra.http.addresses import client_of

log = logging.getLogger(__name__)
_LOG_INTERVAL_S = 60.0
_FULL_PAUSE_S = 1.0
"""After an error such as no free descriptor, which would come again at once; as asyncio's servers do."""
_SHARE_OF_DESCRIPTORS = 0.75
"""The part of this process's descriptors that connections may take; files and other sockets need the rest."""


class ConnectionLimits(msgspec.Struct, frozen=True):
    """Holds the limits of open connections of one process.

    Attributes:
        per_address: of one address, or of one /64 network of IPv6; zero is any number.
        unlimited_addresses: addresses of reverse proxies, which connect for many clients.
    """

    per_address: int = 1_000
    unlimited_addresses: frozenset[str] = frozenset()


class ConnectionCount:
    """Counts open connections by client address, and decides if another connection is accepted."""

    def __init__(self, limits: ConnectionLimits) -> None:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._limits = limits
        self._max_total = int(descriptors * _SHARE_OF_DESCRIPTORS)
        self._max_per_address = min(limits.per_address or self._max_total, int(self._max_total * _SHARE_OF_DESCRIPTORS))
        self._counts: Counter[str] = Counter()
        self._total = 0
        self._logged_at = -_LOG_INTERVAL_S

    def acquire(self, address: str) -> str | None:
        """Counts a connection and returns the client for :meth:`release`.

        Returns None if the connection exceeds a limit.
        """
        client = client_of(address)
        is_limited = address not in self._limits.unlimited_addresses
        if self._total >= self._max_total or (is_limited and self._counts[client] >= self._max_per_address):
            self._log_refusal(address)
            return None
        self._counts[client] += 1
        self._total += 1
        return client

    def release(self, client: str) -> None:
        self._total -= 1
        self._counts[client] -= 1
        if not self._counts[client]:
            del self._counts[client]

    def _log_refusal(self, address: str) -> None:
        now = time.monotonic()
        if now - self._logged_at >= _LOG_INTERVAL_S:
            self._logged_at = now
            counts_text = f"{self._counts[client_of(address)]} from there, {self._total} together"
            log.warning("closed a new connection of %s: too many are open (%s)", address, counts_text)


class _CountedSocket(socket.socket):
    """Represents an accepted socket whose closing is counted once.

    uvloop detaches a socket whose descriptor uvloop has closed.
    """

    _release: Any = None

    def close(self) -> None:
        super().close()
        self._count_end()

    def detach(self) -> int:
        self._count_end()
        return super().detach()

    def _count_end(self) -> None:
        release_count, self._release = self._release, None
        if release_count is not None:
            release_count()


class LimitedListener(socket.socket):
    """Represents a listening socket that closes connections above the limits right after accepting them."""

    _count: ConnectionCount

    @classmethod
    def of(cls, listener: socket.socket, count: ConnectionCount) -> Self:
        """Takes over the descriptor of a bound socket."""
        limited_listener = cls(listener.family, listener.type, listener.proto, fileno=listener.detach())
        limited_listener.setblocking(False)
        limited_listener._count = count
        return limited_listener

    def accept(self) -> tuple[socket.socket, Any]:
        """Accepts a connection. Raises ConnectionAbortedError above the limits; an event loop tries again after it."""
        connection, peer_address = super().accept()
        client = self._count.acquire(str(peer_address[0]) if isinstance(peer_address, tuple) else "")
        if client is None:
            connection.close()
            raise ConnectionAbortedError
        counted_socket = _CountedSocket(
            connection.family, connection.type, connection.proto, fileno=connection.detach()
        )
        counted_socket._release = lambda: self._count.release(client)
        return counted_socket, peer_address


class LimitedSite(web.SockSite):
    """Serves on a listener whose connections are limited. Works with any event loop."""

    async def start(self) -> None:
        if isinstance(asyncio.get_running_loop(), BaseSelectorEventLoop):
            await super().start()
            return
        await web.BaseSite.start(self)
        assert self._runner.server is not None
        self._sock.listen(self._backlog)
        server = _AcceptingServer(self._sock, self._runner.server, self._ssl_context)
        self._server = cast("asyncio.AbstractServer", server)


class _AcceptingServer:
    """Accepts connections by the listener's own method, and lets the event loop serve the connections.

    A handshake of TLS does not hold up the next connection.
    """

    def __init__(
        self, listener: socket.socket, factory: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext | None
    ) -> None:
        self.sockets = (listener,)
        self._listener = listener
        self._factory = factory
        self._tls = tls
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept(), name=f"accept-{listener.getsockname()}")

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except ConnectionError:  # it is above the limits, or was ended meanwhile
                continue
            except OSError as e:
                log.error("cannot accept connections: %s", e)
                await asyncio.sleep(_FULL_PAUSE_S)  # nothing tells when a descriptor is free
                continue
            task = asyncio.create_task(self._serve(connection))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._factory, connection, ssl=self._tls)
        except OSError:  # the client has ended it, or its handshake failed
            connection.close()
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        self._accepting.cancel()
        for task in self._handshakes:
            task.cancel()
        self._listener.close()
