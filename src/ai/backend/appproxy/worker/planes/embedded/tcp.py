"""Serves raw TCP circuits: connects to the app first, and then passes bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from ai.backend.appproxy.worker.planes.embedded.circuits import CircuitState
from ai.backend.appproxy.worker.planes.embedded.relay import Tunnel, reset
from ai.backend.appproxy.worker.planes.embedded.server import Shared
from ai.backend.common.errors import BackendError
from ai.backend.core.proxy.routing import RouteKey

WRITE_BUFFER_BYTES = 256 * 1024


class _EarlyData:
    """Holds the bytes of one side that arrive before the tunnel exists.

    They can arrive although reading is paused, because uvloop begins to read after ``connection_made``.
    """

    def __init__(self) -> None:
        self.data = b""
        self.has_ended = False

    def receive(self, transport: asyncio.Transport, data: bytes) -> None:
        transport.pause_reading()
        self.data += data

    def pass_on(
        self, transport: asyncio.Transport, receive: Callable[[bytes], None], end_direction: Callable[[], bool]
    ) -> None:
        """Passes the bytes that were received before the tunnel existed, and the end of the data, to the tunnel.

        Closes the connection if ``end_direction`` returns False.
        """
        if self.data:
            receive(self.data)
        if self.has_ended and not end_direction():
            transport.close()


class _AppConnection(asyncio.Protocol):
    """Represents the connection from the worker to an app for raw TCP.

    The code that opened the connection makes the tunnel to the client.
    """

    def __init__(self) -> None:
        self.tunnel: Tunnel | None = None
        self.transport: asyncio.Transport
        self.early = _EarlyData()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # those of uvloop are none by their class
        self.transport = transport
        transport.pause_reading()
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        if self.tunnel is not None:
            self.tunnel.send_to_client(data)
        else:
            self.early.receive(self.transport, data)

    def eof_received(self) -> bool:
        if self.tunnel is not None:
            return self.tunnel.end_app_direction()
        self.early.has_ended = True
        return True

    def pause_writing(self) -> None:
        if self.tunnel is not None:
            self.tunnel.pause_client()

    def resume_writing(self) -> None:
        if self.tunnel is not None:
            self.tunnel.resume_client()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.tunnel is not None:
            self.tunnel.on_app_lost(exc)


class TcpClient(asyncio.Protocol):
    """Serves a client's connection to a TCP circuit."""

    def __init__(self, shared: Shared, state: CircuitState, peer: str | None = None) -> None:
        self._shared = shared
        self._state = state
        self._peer = peer
        self._tunnel: Tunnel | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._counted: str | None = None
        self.route: RouteKey | None = None
        self._transport: asyncio.Transport
        self._early = _EarlyData()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # those of uvloop are none by their class
        self._transport = transport
        peer = self._peer or transport.get_extra_info("peername")[0]
        self._counted = self._shared.connection_count.acquire(peer)
        state = self._state
        if (
            self._counted is None
            or self._shared.is_draining
            or len(state.connections) >= self._shared.limits.circuit_connections
            or not self._shared.gate.admits_connection(state.circuit, peer)
        ):
            self._shared.counts.refused["tcp"] += 1
            reset(transport)
            return
        transport.pause_reading()
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        state.requests += 1
        state.last_used = time.time()
        state.add_connection(self)
        self._connecting = self._shared.spawn(self._connect())

    async def _connect(self) -> None:
        state, failed_keys = self._state, frozenset[RouteKey]()
        for _ in range(2):
            now = self._shared.loop.time()
            target = state.choose(now, failed_keys)
            if target is None:
                break
            route_key, route = target
            try:
                app_connection = await self._shared.dialer.dial(
                    _AppConnection, route, timeout_s=self._shared.limits.connect_s
                )
            except BackendError:
                state.breaker.record_failure(route_key, now)
                failed_keys |= {route_key}
                continue
            state.breaker.record_success(route_key)
            state.remove_connection(self)
            if self._transport.is_closing() or state.is_removed:
                app_connection.transport.abort()
                self._transport.abort()
                return
            tunnel = self._tunnel = app_connection.tunnel = Tunnel(
                self._shared, state, route_key, self._transport, app_connection.transport
            )
            self._transport.resume_reading()
            app_connection.transport.resume_reading()
            self._early.pass_on(self._transport, tunnel.send_to_app, tunnel.end_client_direction)
            app_connection.early.pass_on(app_connection.transport, tunnel.send_to_client, tunnel.end_app_direction)
            return
        state.remove_connection(self)
        self._shared.counts.refused["connect"] += 1
        reset(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._tunnel is not None:
            self._tunnel.send_to_app(data)
        else:
            self._early.receive(self._transport, data)

    def eof_received(self) -> bool:
        if self._tunnel is not None:
            return self._tunnel.end_client_direction()
        self._early.has_ended = True
        return True

    def pause_writing(self) -> None:
        if self._tunnel is not None:
            self._tunnel.pause_app()

    def resume_writing(self) -> None:
        if self._tunnel is not None:
            self._tunnel.resume_app()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._counted is not None:
            self._shared.connection_count.release(self._counted)
        if self._tunnel is not None:
            self._tunnel.on_client_lost(exc)

    def cut(self) -> None:
        """Ends the connection while the connection to the app is still being made."""
        self._state.remove_connection(self)
        reset(self._transport)
