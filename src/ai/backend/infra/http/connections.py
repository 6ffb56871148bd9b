"""Limits the open connections of a server: of one client address, and together.

Connections are counted when the listening socket accepts them, before TLS and before a request, and are released when
their sockets are closed. A loop of uvloop accepts by itself, so there nothing is limited.
"""

from __future__ import annotations

import logging
import resource
import socket
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Self

from ai.backend.infra.http.addresses import client_of

log = logging.getLogger(__name__)
_LOG_INTERVAL_S = 60.0
_SHARE_OF_DESCRIPTORS = 0.75
"""The part of this process's descriptors that connections may take; files and other sockets need the rest."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of the open connections of one process.

    Attributes:
        per_address: of one address, or of one /64 network of IPv6; zero is any number.
        unlimited_addresses: addresses of reverse proxies, which connect for many clients.
    """

    per_address: int = 1_000
    unlimited_addresses: frozenset[str] = frozenset()


class ConnectionCount:
    """Counts open connections by client address and judges further ones."""

    def __init__(self, limits: ConnectionLimits) -> None:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._limits = limits
        self._max_total = int(descriptors * _SHARE_OF_DESCRIPTORS)
        self._max_per_address = min(limits.per_address or self._max_total, int(self._max_total * _SHARE_OF_DESCRIPTORS))
        self._counts: Counter[str] = Counter()
        self._total = 0
        self._logged_at = -_LOG_INTERVAL_S

    def acquire(self, address: str) -> str | None:
        """Counts a connection and returns the client that :meth:`release` needs, or None if it exceeds a limit."""
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
            counts = f"{self._counts[client_of(address)]} from there, {self._total} together"
            log.warning("closed a new connection of %s: too many are open (%s)", address, counts)


class _CountedSocket(socket.socket):
    """An accepted socket whose closing is counted once."""

    _release: Any = None

    def close(self) -> None:
        super().close()
        release, self._release = self._release, None
        if release is not None:
            release()


class LimitedListener(socket.socket):
    """A listening socket that closes connections above the limits as soon as it has accepted them."""

    _count: ConnectionCount

    @classmethod
    def of(cls, listener: socket.socket, count: ConnectionCount) -> Self:
        """Takes over the descriptor of a bound socket."""
        limited = cls(listener.family, listener.type, listener.proto, fileno=listener.detach())
        limited.setblocking(False)
        limited._count = count
        return limited

    def accept(self) -> tuple[socket.socket, Any]:
        """Accepts a connection. Raises ConnectionAbortedError above the limits; an event loop tries again after it."""
        connection, peer = super().accept()
        client = self._count.acquire(str(peer[0]) if isinstance(peer, tuple) else "")
        if client is None:
            connection.close()
            raise ConnectionAbortedError
        counted = _CountedSocket(connection.family, connection.type, connection.proto, fileno=connection.detach())
        counted._release = lambda: self._count.release(client)
        return counted, peer
