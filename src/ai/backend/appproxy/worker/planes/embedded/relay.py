"""Passes bytes between a client and an app unchanged, for upgraded connections and raw TCP, with half close."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

from ai.backend.appproxy.worker.planes.embedded.circuits import CircuitState
from ai.backend.appproxy.worker.planes.embedded.server import Shared
from ai.backend.core.proxy.routing import RouteKey

_NO_LINGER = struct.pack("ii", 1, 0)


class Tunnel:
    """Connects two transports and passes bytes between them. The slower side stops the reading of the other one."""

    def __init__(
        self,
        shared: Shared,
        state: CircuitState,
        route: RouteKey,
        client: asyncio.Transport,
        app: asyncio.Transport,
    ) -> None:
        self._shared = shared
        self._state = state
        self.route: RouteKey | None = route
        self._client = client
        self._app = app
        self._client_has_ended = self._app_has_ended = False
        self.deadline = shared.loop.time() + shared.limits.tunnel_gap_s
        state.add_connection(self)
        state.change_in_flight(route, 1)
        shared.timed.add(self)

    def send_to_app(self, data: bytes) -> None:
        self._state.received += len(data)
        self.deadline = self._shared.loop.time() + self._shared.limits.tunnel_gap_s
        self._app.write(data)

    def send_to_client(self, data: bytes) -> None:
        self._state.sent += len(data)
        self.deadline = self._shared.loop.time() + self._shared.limits.tunnel_gap_s
        self._client.write(data)

    def end_client_direction(self) -> bool:
        """Ends the sending to the app, after the client has ended its own. Returns True if the app may still send."""
        self._client_has_ended = True
        return _end_direction(self._app) and not self._app_has_ended

    def end_app_direction(self) -> bool:
        self._app_has_ended = True
        return _end_direction(self._client) and not self._client_has_ended

    def pause_client(self) -> None:
        _pause(self._client)

    def resume_client(self) -> None:
        _resume(self._client)

    def pause_app(self) -> None:
        _pause(self._app)

    def resume_app(self) -> None:
        _resume(self._app)

    def on_client_lost(self, error: Exception | None) -> None:
        self._finish()
        _close(self._app, error)

    def on_app_lost(self, error: Exception | None) -> None:
        self._finish()
        _close(self._client, error)

    def cut(self) -> None:
        self._finish()
        reset(self._client)
        reset(self._app)

    def expire(self) -> None:
        self.cut()

    def _finish(self) -> None:
        if self in self._shared.timed:
            self._shared.timed.discard(self)
            self._state.remove_connection(self)
            if self.route is not None:
                self._state.change_in_flight(self.route, -1)


def reset(transport: asyncio.Transport) -> None:
    """Cuts a connection by a reset, because a normal end would look like the end of the data."""
    raw_socket = transport.get_extra_info("socket")
    if raw_socket is not None and not transport.is_closing():
        with suppress(OSError):
            raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


def _end_direction(transport: asyncio.Transport) -> bool:
    """Ends one direction of a connection.

    TLS has no half close: there the whole connection ends after what is buffered.
    """
    if transport.is_closing():
        return False
    if transport.can_write_eof():
        transport.write_eof()
        return True
    transport.close()
    return False


def _close(transport: asyncio.Transport, error: Exception | None) -> None:
    """Closes a connection after its buffered data is sent, or resets it at once after an error.

    The reset shows the peer that the data is incomplete.
    """
    if error is not None:
        reset(transport)
    else:
        transport.close()


def _pause(transport: asyncio.Transport) -> None:
    if not transport.is_closing():
        transport.pause_reading()


def _resume(transport: asyncio.Transport) -> None:
    if not transport.is_closing():
        transport.resume_reading()
