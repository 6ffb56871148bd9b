"""Serves connections of HTTP/1.1 clients: parses requests by httptools, and lets exchanges answer them in order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

import httptools

from ai.backend.appproxy.worker.access.gate import Admission, wants_page
from ai.backend.appproxy.worker.access.replies import Response, error
from ai.backend.appproxy.worker.access.tokens import Grant
from ai.backend.appproxy.worker.planes.embedded.circuits import CircuitState
from ai.backend.appproxy.worker.planes.embedded.exchange import ClientRequest, Exchange
from ai.backend.appproxy.worker.planes.embedded.model_exchange import ModelExchange
from ai.backend.appproxy.worker.planes.embedded.model_search import ModelSearch, answer_about_models
from ai.backend.appproxy.worker.planes.embedded.relay import Tunnel, reset
from ai.backend.appproxy.worker.planes.embedded.server import Shared
from ai.backend.appproxy.worker.planes.embedded.upstream import WRITE_BUFFER_BYTES, Upstream, UpstreamPool
from ai.backend.common.appproxy_errors import NoSuchObject, SubdomainUnknown
from ai.backend.core.proxy.headers import BadRequest, Header, check_request
from ai.backend.core.proxy.routing import RouteKey

_MAX_PIPELINED = 32
_LINGER_S = 2.0
MODELS_SLOT = -1
"""The slot of the base URL of all models."""


class _QueuedRequest:
    """Holds a request that arrived before the previous one was answered, with the received part of its body."""

    __slots__ = ("body", "is_done", "request")

    def __init__(self, request: ClientRequest) -> None:
        self.request = request
        self.body: list[bytes] = []
        self.is_done = False

    def pass_to(self, exchange: Exchange | ModelSearch) -> None:
        """Passes the received part of the request's body to the exchange that answers the request.

        An exchange that has ended ignores it.
        """
        for piece in self.body:
            exchange.on_request_data(piece)
        if self.is_done:
            exchange.on_request_end()


class HttpConnection(asyncio.Protocol):
    """Serves a client's connection to the frontend at ``port``.

    A port of None means the frontend of the wildcard domain. ``peer`` is the client's address where another proxy of
    this worker has it.
    """

    def __init__(self, shared: Shared, pool: UpstreamPool, port: int | None, peer: str | None = None) -> None:
        self._shared = shared
        self._pool = pool
        self._port = port
        self._exchange: Exchange | ModelSearch | None = None
        self._queue: deque[_QueuedRequest] = deque()
        self._tunnel: Tunnel | None = None
        self._early: list[bytes] = []
        self._is_closing = False
        self._head_bytes = 0  # of a head, or since the last piece of a body: of chunk sizes and trailers
        self._body_bytes = 0
        self._in_head = True
        self._target = b""
        self._fields: list[Header] = []
        self._bad: BadRequest | None = None
        self._counted: str | None = None
        self._peer = peer or ""
        self.deadline = shared.loop.time() + shared.limits.head_s
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # those of uvloop are none by their class
        self._transport = transport
        self._peer = self._peer or transport.get_extra_info("peername")[0]
        self._counted = self._shared.connection_count.acquire(self._peer)
        if self._counted is None:
            self._shared.counts.refused["connections"] += 1
            transport.abort()
            return
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self._shared.timed.add(self)

    # Parsing

    def data_received(self, data: bytes) -> None:
        if self._tunnel is not None:
            self._tunnel.send_to_app(data)
            return
        if self._is_closing:
            return
        if self._in_head and not self._head_bytes and self._exchange is None:
            self.deadline = self._shared.loop.time() + self._shared.limits.head_s
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as e:
            self._early.append(data[e.args[0] :])
        except httptools.HttpParserError:
            self._bad = self._bad or BadRequest("the request is malformed")
        if self._head_bytes > self._shared.limits.head_bytes:
            self._bad = self._bad or BadRequest("the head or trailer is too large", 431)
        if self._bad is not None:
            self._refuse(self._bad)

    def on_message_begin(self) -> None:
        self._target = b""
        self._fields = []
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # otherwise it is a trailer, which no app gets
            self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = self._body_bytes = 0
        if self._bad is not None:
            return
        try:
            request = self._read_request()
        except BadRequest as e:
            self._bad = e
            return
        if self._exchange is not None or self._queue:
            self._queue.append(_QueuedRequest(request))
            self._transport.pause_reading()
            if len(self._queue) > _MAX_PIPELINED:
                self._bad = BadRequest("too many requests are sent at once", 429)
        else:
            self._start(request)

    def _read_request(self) -> ClientRequest:
        parser, fields, limits = self._parser, self._fields, self._shared.limits
        if len(fields) > limits.header_fields:
            raise BadRequest("too many header fields", 431)
        if len(self._target) + sum([len(name) + len(value) for name, value in fields]) > limits.head_bytes:
            raise BadRequest("the head is too large", 431)
        method, version = parser.get_method(), parser.get_http_version()
        host = check_request(method, self._target, version, fields)
        content_length, upgrade_protocol, is_chunked, expects_continue = None, b"", False, False
        for name, value in fields:
            if name == b"content-length":
                content_length = value
            elif name == b"transfer-encoding":
                is_chunked = True
            elif name == b"upgrade":
                upgrade_protocol = value.lower()
            elif name == b"expect":
                expects_continue = value.lower() == b"100-continue"
        if content_length is not None and limits.body_bytes and int(content_length) > limits.body_bytes:
            raise BadRequest("the body is too large", 413)
        has_upgrade = parser.should_upgrade()
        is_websocket = (
            has_upgrade
            and upgrade_protocol == b"websocket"
            and method == b"GET"
            and not is_chunked
            and not content_length
        )
        return ClientRequest(
            method=method,
            target=self._target,
            headers=fields,
            host=host,
            # After an upgrade that is not made the parser cannot tell what follows.
            keep_alive=parser.should_keep_alive() and not has_upgrade,
            is_http_1_0=version == "1.0",
            is_websocket=is_websocket,
            is_chunked=is_chunked,
            content_length=content_length,
            expects_continue=expects_continue,
        )

    def on_body(self, data: bytes) -> None:
        self._head_bytes = 0
        self._body_bytes += len(data)
        if self._shared.limits.body_bytes and self._body_bytes > self._shared.limits.body_bytes:
            self._bad = self._bad or BadRequest("the body is too large", 413)
        elif self._queue:
            self._queue[-1].body.append(data)
        elif self._exchange is not None:
            self.deadline = self._shared.loop.time() + self._shared.limits.body_gap_s
            self._exchange.on_request_data(data)

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        if self._queue:
            self._queue[-1].is_done = True
        elif self._exchange is not None:
            self._exchange.on_request_end()

    # Exchanges

    def _start(self, request: ClientRequest) -> Exchange | ModelSearch | None:
        shared = self._shared
        if self._port == MODELS_SLOT:
            return self._find_model(request)
        state = shared.circuit_of(request.host.decode("latin-1"), self._port)
        if state is None:
            error_class = NoSuchObject if self._port is not None else SubdomainUnknown
            self._answer_directly(
                request, error(404, "There is no app at this address.", error_class, as_page=wants_page(request))
            )
            return None
        verdict = shared.gate.check(state.circuit, request, self._peer)
        if isinstance(verdict, Response):
            self._answer_directly(request, verdict)
            return None
        return self._start_exchange(state, request, verdict)

    def _find_model(self, request: ClientRequest) -> ModelSearch | None:
        """Answers a request at the base URL of all models, or starts to search its body for the name of the model.

        Returns None if the request was answered.
        """
        grant = self._shared.gate.read_grant(request)
        if isinstance(grant, Response):
            self._answer_directly(request, grant)
            return None
        reply = answer_about_models(self._shared.table, request.method, request.target, grant)
        if reply is not None:
            self._answer_directly(request, reply)
            return None
        if request.expects_continue and request.has_body:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._exchange = search = ModelSearch(self._shared, self, request, grant)
        return search

    def pass_to_endpoint(self, state: CircuitState, request: ClientRequest, grant: Grant, body: bytes) -> None:
        """Passes a request with its whole body to the endpoint of its model."""
        self._exchange = None
        verdict = self._shared.gate.admit_grant(state.circuit, request, self._peer, grant)
        if isinstance(verdict, Response):
            self.reply(verdict)
            return
        request.expects_continue = False
        exchange = self._start_exchange(state, request, verdict)
        if exchange is not None:
            exchange.on_request_data(body)
            exchange.on_request_end()

    def _start_exchange(self, state: CircuitState, request: ClientRequest, admission: Admission) -> Exchange | None:
        shared = self._shared
        if len(state.connections) >= shared.limits.circuit_connections:
            self._answer_directly(
                request, error(503, "The app has too many open requests.", fields=b"Retry-After: 2\r\n")
            )
        else:
            if request.expects_continue and request.has_body:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            exchange_class = Exchange if state.endpoint is None or request.is_websocket else ModelExchange
            exchange = self._exchange = exchange_class(shared, self._pool, self, state, request, admission)
            exchange.start()
            return exchange
        return None

    def _answer_directly(self, request: ClientRequest, response: Response) -> None:
        """Sends a reply of the worker itself to the client, without passing the request to an app.

        A body that is still to come is not read: the connection ends.
        """
        self._shared.counts.refused[response.reason] += 1
        keep_alive = request.keep_alive and not request.has_body
        self._send(response, keep_alive=keep_alive, is_head=request.method == b"HEAD", lingers=request.has_body)

    def reply(self, response: Response) -> None:
        """Replies to the request instead of the app."""
        self._exchange = None
        self._send(response, keep_alive=False, lingers=True)

    def _send(self, response: Response, *, keep_alive: bool, is_head: bool = False, lingers: bool = False) -> None:
        keep_alive = keep_alive and not self._shared.is_draining
        self._transport.write(response.head(keep_alive=keep_alive) + (b"" if is_head else response.body))
        self.finish(keep_alive=keep_alive, lingers=lingers)

    def finish(self, *, keep_alive: bool, lingers: bool = False) -> None:
        """Continues with the next request, or closes the connection."""
        self._exchange = None
        if not keep_alive or self._is_closing or self._shared.is_draining:
            self._close(lingers=lingers)
            return
        self.deadline = self._shared.loop.time() + self._shared.limits.keep_alive_s
        if self._queue:
            queued_request = self._queue.popleft()
            exchange = self._start(queued_request.request)
            if exchange is not None:
                queued_request.pass_to(exchange)
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def upgrade(self, route: RouteKey, upstream: Upstream) -> Tunnel:
        """Turns the connection into a tunnel to the app."""
        exchange = self._exchange
        assert isinstance(exchange, Exchange)
        self._exchange = None
        self._shared.timed.discard(self)
        tunnel = Tunnel(self._shared, exchange.state, route, self._transport, upstream.transport)
        self._tunnel = tunnel
        for early_data in self._early:
            if early_data:
                tunnel.send_to_app(early_data)
        self._early.clear()
        self._transport.resume_reading()
        return tunnel

    def _refuse(self, bad_request: BadRequest) -> None:
        """Answers a malformed request with an error, and closes the connection.

        If a response has begun, the connection is only aborted. It cannot be used further, because the end of the
        malformed request is not known.
        """
        self._shared.counts.refused["malformed"] += 1
        exchange, self._exchange = self._exchange, None
        self._queue.clear()
        if exchange is not None:
            exchange.on_client_lost()
            if exchange.has_responded:
                self.abort()
                return
        self._transport.write(
            (response := error(bad_request.status, str(bad_request))).head(keep_alive=False) + response.body
        )
        self._close(lingers=True)

    def _close(self, *, lingers: bool = False) -> None:
        """Closes the connection after buffered data is sent.

        ``lingers``: reads what the client still sends for a while, since closing with unread data would reset the
        connection and take the reply away.
        """
        self._is_closing = True
        self._queue.clear()
        self.deadline = self._shared.loop.time() + self._shared.limits.unread_s
        if lingers and self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
            self._transport.resume_reading()
            self.deadline = self._shared.loop.time() + _LINGER_S
        else:
            self._transport.close()

    # The transport

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def wait_until(self, deadline: float) -> None:
        self.deadline = deadline

    def pause(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._transport.is_closing() and not self._queue:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        if self._tunnel is not None:
            self._tunnel.pause_app()
        elif self._exchange is not None:
            self._exchange.pause_response()
            self.deadline = self._shared.loop.time() + self._shared.limits.unread_s

    def resume_writing(self) -> None:
        if self._tunnel is not None:
            self._tunnel.resume_app()
        elif self._exchange is not None:
            self._exchange.resume_response()
            self.deadline = self._shared.loop.time() + self._shared.limits.stream_gap_s

    def eof_received(self) -> bool:
        return self._tunnel is not None and self._tunnel.end_client_direction()

    def abort(self) -> None:
        self._is_closing = True
        reset(self._transport)

    def expire(self) -> None:
        """Ends a connection after it was silent for too long."""
        if self._is_closing:  # the client does not read its reply, or does not stop sending
            reset(self._transport)
        elif self._exchange is not None:
            self._exchange.expire()
        else:
            self._close()

    def drain(self) -> None:
        """Closes the connection if no request or tunnel is open on it."""
        if self._exchange is None and self._tunnel is None:
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._shared.timed.discard(self)
        if self._counted is not None:
            self._shared.connection_count.release(self._counted)
        if self._tunnel is not None:
            self._tunnel.on_client_lost(exc)
        elif self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            exchange.on_client_lost()
