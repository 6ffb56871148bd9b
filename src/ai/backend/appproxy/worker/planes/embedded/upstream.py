"""Connects to apps: reads HTTP/1.1 responses by httptools, and pools the unused connections of each route."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

import httptools

from ai.backend.appproxy.worker.planes.embedded.circuits import CircuitState
from ai.backend.appproxy.worker.planes.embedded.relay import Tunnel, reset
from ai.backend.appproxy.worker.planes.embedded.server import Shared
from ai.backend.core.proxy.headers import Header
from ai.backend.core.proxy.routing import RouteKey, Target

WRITE_BUFFER_BYTES = 256 * 1024
_FRESH_S = 1.0
"""The seconds within which no server closes an unused connection."""
_MAX_HEAD_BYTES = 256 * 1024


class ResponseSink(Protocol):
    """Receives one response of an app."""

    def on_response(self, status: int, headers: list[Header], *, keep_alive: bool) -> bool:
        """Receives the head of the response. Returns False if no body follows, whatever the header fields say."""

    def on_response_data(self, data: bytes) -> None: ...

    def on_response_end(self) -> None: ...

    def on_upgraded(self, data: bytes) -> Tunnel:
        """Receives the app's switch to another protocol, with the first bytes after it. Returns the tunnel."""

    def on_upstream_lost(self, error: Exception | None) -> None: ...

    def flush(self) -> None:
        """Sends the collected data of the response to the client."""

    def pause_request(self) -> None: ...

    def resume_request(self) -> None: ...


class Upstream(asyncio.Protocol):
    """Represents a connection from the worker to an app, used by one exchange at a time, or unused in the pool."""

    def __init__(self, pool: UpstreamPool, key: RouteKey) -> None:
        self._pool = pool
        self.key = key
        self.sink: ResponseSink | None = None
        self.tunnel: Tunnel | None = None
        self.idle_since = 0.0
        self.is_reusable = True
        self.has_received = False
        self._head_bytes = 0  # of a head, or since the last piece of a body: of chunk sizes and trailers
        self._in_head = True
        self.head_fields: list[Header] = []
        self._is_final = False
        self._until_end = False
        self._is_done = False
        self._had_head_request = False
        self._may_upgrade = False
        self.transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # those of uvloop are none by their class
        self.transport = transport
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        if self.tunnel is not None:
            self.tunnel.send_to_client(data)
            return
        sink = self.sink
        if sink is None:  # nothing was requested
            self.abort()
            return
        self.has_received = True
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as e:
            self.tunnel = sink.on_upgraded(data[e.args[0] :])
            return
        except httptools.HttpParserError as e:
            self._report_loss(e)
            return
        if self._head_bytes > _MAX_HEAD_BYTES:
            self._report_loss(ValueError("the head or trailer of the response is too large"))
            return
        sink.flush()
        if self._is_done:
            self._complete()

    def on_message_begin(self) -> None:
        if self._is_done:  # more than was requested: whatever it is, nobody gets it
            self.is_reusable = False
        self.head_fields = []
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # otherwise it is a trailer, which no client gets
            self.head_fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._head_bytes = 0
        if self.sink is None or self._is_final:
            raise ValueError("a second response to one request")
        if status == 101 and not self._may_upgrade:
            raise ValueError("another protocol than the request asks for")
        if status < 200:
            return
        self._is_final = True
        self._in_head = False
        transfer_encodings = [value for name, value in self.head_fields if name == b"transfer-encoding"]
        if transfer_encodings and (len(transfer_encodings) > 1 or transfer_encodings[0].lower() != b"chunked"):
            raise ValueError("the transfer encoding is not supported")
        keep_alive = self._parser.should_keep_alive()
        if not keep_alive:
            self.is_reusable = False
        has_body = self.sink.on_response(status, self.head_fields, keep_alive=keep_alive)
        self._until_end = (
            has_body
            and not transfer_encodings
            and not any(field_name == b"content-length" for field_name, _ in self.head_fields)
        )
        self._is_done = not has_body

    def on_body(self, data: bytes) -> None:
        self._head_bytes = 0
        if self._is_done:  # the body of a response that has none
            self.is_reusable = False
        elif self.sink is not None and self._is_final:
            self.sink.on_response_data(data)

    def on_message_complete(self) -> None:
        if self._is_final and not self._until_end:
            self._is_done = True

    def _complete(self) -> None:
        sink, self.sink = self.sink, None
        if sink is not None:
            sink.on_response_end()

    def attach(self, sink: ResponseSink, *, is_head: bool, may_upgrade: bool) -> None:
        """Assigns the connection to an exchange for one request."""
        self.sink = sink
        self._may_upgrade = may_upgrade
        self._is_final = self._until_end = self._is_done = self.has_received = False
        self._in_head = True
        self._head_bytes = 0
        if self._had_head_request:  # the parser still expects the body that the response announced
            self._parser = httptools.HttpResponseParser(self)
        self._had_head_request = is_head

    def pause_writing(self) -> None:
        if self.tunnel is not None:
            self.tunnel.pause_client()
        elif self.sink is not None:
            self.sink.pause_request()

    def resume_writing(self) -> None:
        if self.tunnel is not None:
            self.tunnel.resume_client()
        elif self.sink is not None:
            self.sink.resume_request()

    def eof_received(self) -> bool:
        return self.tunnel is not None and self.tunnel.end_app_direction()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.discard(self)
        if self.tunnel is not None:
            self.tunnel.on_app_lost(exc)
        elif self.sink is not None:
            if exc is None and self._until_end:
                self._complete()
            else:
                self._report_loss(exc)

    def abort(self) -> None:
        """Aborts the connection, so that the app can stop computing its response."""
        self.sink = None
        self.is_reusable = False
        self._pool.discard(self)
        reset(self.transport)

    def _report_loss(self, error: Exception | None) -> None:
        sink, self.sink = self.sink, None
        self.is_reusable = False
        self.transport.abort()
        if sink is not None:
            sink.on_upstream_lost(error)


class UpstreamPool:
    """Keeps unused connections to apps for later requests, by route.

    Connections that stay unused too long are closed.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._idle: dict[RouteKey, list[Upstream]] = {}

    def take(self, key: RouteKey, *, is_repeatable: bool) -> Upstream | None:
        """Returns an unused connection to a route. Returns None if there is no such connection.

        The app may be closing a connection that has rested. A request that is not ``is_repeatable`` gets a fresh one.
        """
        idle_connections = self._idle.get(key)
        oldest_idle_since = self._shared.loop.time() - (self._shared.limits.pool_idle_s if is_repeatable else _FRESH_S)
        while idle_connections and idle_connections[-1].idle_since > oldest_idle_since:
            upstream = idle_connections.pop()
            if not upstream.transport.is_closing():
                return upstream
        return None

    async def connect(self, target: Target) -> Upstream:
        """Makes a new connection to a route. Raises Unavailable or AddressRefused."""
        return await self._shared.dialer.dial(
            lambda: Upstream(self, target.key), target.route, timeout_s=self._shared.limits.connect_s
        )

    def put(self, upstream: Upstream, state: CircuitState) -> None:
        """Keeps a connection for the next request, or closes it."""
        idle_connections = self._idle.setdefault(upstream.key, [])
        if upstream.is_reusable and not state.is_removed and len(idle_connections) < self._shared.limits.pool_size:
            upstream.idle_since = self._shared.loop.time()
            upstream.transport.resume_reading()
            idle_connections.append(upstream)
        else:
            upstream.transport.close()

    def discard(self, upstream: Upstream) -> None:
        idle_connections = self._idle.get(upstream.key)
        if idle_connections and upstream in idle_connections:
            idle_connections.remove(upstream)

    def close_idle(self, *, closes_all: bool = False) -> None:
        """Closes the connections that were unused for too long."""
        oldest_idle_since = self._shared.loop.time() - self._shared.limits.pool_idle_s
        for key, idle_connections in list(self._idle.items()):
            kept_connections = (
                []
                if closes_all
                else [connection for connection in idle_connections if connection.idle_since > oldest_idle_since]
            )
            for upstream in idle_connections:
                if upstream not in kept_connections:
                    upstream.transport.close()
            if kept_connections:
                self._idle[key] = kept_connections
            else:
                del self._idle[key]
