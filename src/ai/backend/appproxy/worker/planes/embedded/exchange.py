"""Passes a client's request to an app and the response back, including protocol upgrades."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Protocol

from ai.backend.appproxy.worker.access.gate import Admission
from ai.backend.appproxy.worker.access.replies import Response, error
from ai.backend.appproxy.worker.planes.embedded.circuits import CircuitState
from ai.backend.appproxy.worker.planes.embedded.relay import Tunnel
from ai.backend.appproxy.worker.planes.embedded.server import Shared
from ai.backend.appproxy.worker.planes.embedded.upstream import Upstream, UpstreamPool
from ai.backend.common.errors import BackendError
from ai.backend.core.proxy.headers import Header, forwarded_fields, request_fields, response_fields
from ai.backend.core.proxy.routing import RouteKey, Target, key_of
from ai.backend.infra.telemetry.tracing import HEADER, is_tracing, record_span

REPLAY_BYTES = 64 * 1024
"""The largest request that is kept to be sent to another route."""
_IDEMPOTENT = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"))
_TRACEPARENT = HEADER.encode()
_LAST_CHUNK = b"0\r\n\r\n"
_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}


@dataclass(slots=True)
class ClientRequest:
    """Holds a parsed request. Names of headers are in lower case."""

    method: bytes
    target: bytes
    headers: Sequence[Header]
    host: bytes
    keep_alive: bool
    is_http_1_0: bool
    is_websocket: bool
    is_chunked: bool
    content_length: bytes | None
    expects_continue: bool

    @property
    def has_body(self) -> bool:
        return self.is_chunked or self.content_length not in (None, b"0")


class Client(Protocol):
    """Represents the client's connection on which a request arrived, and on which the response is written."""

    def write(self, data: bytes) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def wait_until(self, deadline: float) -> None: ...

    def reply(self, response: Response) -> None: ...

    def finish(self, *, keep_alive: bool, lingers: bool = False) -> None: ...

    def upgrade(self, route: RouteKey, upstream: Upstream) -> Tunnel: ...

    def abort(self) -> None: ...


class Exchange:
    """Passes one request on to an app, and its response back.

    It is sent once more, to another route, if no byte of a response came and that is safe.
    """

    def __init__(
        self,
        shared: Shared,
        pool: UpstreamPool,
        client: Client,
        state: CircuitState,
        request: ClientRequest,
        admission: Admission,
    ) -> None:
        self._shared = shared
        self._pool = pool
        self._client = client
        self.state = state
        self._request = request
        self._admission = admission
        self._upstream: Upstream | None = None
        self.route: RouteKey | None = None
        self._failed: frozenset[RouteKey] = frozenset()
        self._sent: list[bytes] = []
        self._sent_bytes = 0
        self._is_replayable = True
        self._has_retried = False
        self._request_is_done = not request.has_body
        self._response_is_done = False
        self._status = 0
        self._keep_alive = request.keep_alive
        self._adds_chunks = False
        self._ends_by_close = False
        self._is_over = False
        self._out: list[bytes] = []
        self._began = time.monotonic()

    @property
    def has_responded(self) -> bool:
        """Returns True once the head of the app's response has arrived."""
        return self._status != 0

    def start(self) -> None:
        """Sends the request to a route of the circuit."""
        state = self.state
        state.requests += 1
        state.last_used = time.time()
        state.add_connection(self)
        self._keep_for_retry(self._request_head(self._request.content_length))
        limits = self._shared.limits
        wait_s = limits.body_gap_s if self._request.has_body else limits.first_byte_s
        self._client.wait_until(self._shared.loop.time() + wait_s)
        self._dispatch()

    def _request_head(self, content_length: bytes | None) -> bytes:
        request, admission = self._request, self._admission
        head_parts = [b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (request.method, request.target, request.host)]
        head_parts += request_fields(request.headers, hidden=admission.hidden)
        if admission.cookies:
            head_parts.append(b"Cookie: %b\r\n" % admission.cookies.encode("latin-1"))
        head_parts.append(forwarded_fields(admission.address, self._shared.scheme, request.host))
        if content_length is not None:
            head_parts.append(b"Content-Length: %b\r\n" % content_length)
        elif request.is_chunked:
            head_parts.append(b"Transfer-Encoding: chunked\r\n")
        head_parts.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" if request.is_websocket else b"\r\n")
        return b"".join(head_parts)

    def _dispatch(self) -> None:
        target = self._choose_target()
        if target is not None:
            self._send(target)

    def _choose_target(self) -> Target | None:
        """Chooses the route for the request. Returns None if there is no route now.

        Then the request was answered with an error, or it waits for a route.
        """
        target = self.state.choose(self._shared.loop.time(), self._failed)
        if target is None:
            self._fail(503, "The app has no running service.")
        return target

    def _send(self, target: Target) -> None:
        upstream = None
        if not self._request.is_websocket and not self._has_retried:
            upstream = self._pool.take(target.key, is_repeatable=self._is_repeatable)
        self._set_route(target.key)
        if upstream is not None:
            self._send_to(upstream)
        else:
            self._shared.spawn(self._connect(target))

    async def _connect(self, target: Target) -> None:
        try:
            upstream = await self._pool.connect(target)
        except BackendError:
            if not self._is_over:
                self._retry(has_been_sent=False)
            return
        if self._is_over:
            upstream.abort()
        else:
            self._send_to(upstream)

    def _send_to(self, upstream: Upstream) -> None:
        self._upstream = upstream
        request = self._request
        upstream.attach(self, is_head=request.method == b"HEAD", may_upgrade=request.is_websocket)
        self._client.resume()
        upstream.transport.write(b"".join(self._sent))  # may pause the client again
        self._drop_large_copy()

    def on_request_data(self, data: bytes) -> None:
        """Receives a piece of the request's body."""
        if self._is_over:
            return
        self.state.received += len(data)
        if self._request.is_chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._pass_body_on(data)

    def on_request_end(self) -> None:
        """Receives the end of the request."""
        if self._is_over:
            return
        self._request_is_done = True
        if self._request.is_chunked:
            self._pass_body_on(_LAST_CHUNK)
        self._client.wait_until(self._shared.loop.time() + self._shared.limits.first_byte_s)
        if self._response_is_done:
            self._finish()

    def _pass_body_on(self, data: bytes) -> None:
        if self._response_is_done:
            return
        if self._upstream is None:
            self._keep_for_retry(data)
            if self._sent_bytes > REPLAY_BYTES:
                self._client.pause()
            return
        if self._is_replayable:
            self._keep_for_retry(data)
            self._drop_large_copy()
        self._upstream.transport.write(data)

    def _keep_for_retry(self, data: bytes) -> None:
        self._sent.append(data)
        self._sent_bytes += len(data)

    def _drop_large_copy(self) -> None:
        """Deletes the stored copy of the sent request if it is too large to be sent to another route."""
        if self._sent_bytes > REPLAY_BYTES:
            self._is_replayable = False
            self._sent.clear()

    def on_response(self, status: int, headers: list[Header], *, keep_alive: bool) -> bool:
        request = self._request
        self._status = status
        if self._upstream is not None:
            self._record_response(self._upstream.key, status)
        head_parts = [b"HTTP/1.1 %d %b\r\n" % (status, _PHRASES.get(status, b"Status"))]
        head_parts += response_fields(headers, request.host)
        has_body = request.method != b"HEAD" and status not in (204, 304)
        if has_body and not any(name == b"content-length" for name, _ in headers):
            self._adds_chunks = not request.is_http_1_0
            self._ends_by_close = request.is_http_1_0
            if self._adds_chunks:
                head_parts.append(b"Transfer-Encoding: chunked\r\n")
        if self._ends_by_close or not self._request_is_done or self._shared.is_draining:
            self._keep_alive = False
        if not self._keep_alive:
            head_parts.append(b"Connection: close\r\n")
        elif request.is_http_1_0:
            head_parts.append(b"Connection: keep-alive\r\n")
        head_parts.append(self._proxy_fields())
        head_parts.append(b"\r\n")
        self._out.append(b"".join(head_parts))
        return has_body

    def _record_response(self, key: RouteKey, status: int) -> None:
        self.state.breaker.record_success(key)

    def _proxy_fields(self) -> bytes:
        """Returns the header lines that the proxy adds to a response."""
        if not self._admission.set_cookie:
            return b""
        return b"Set-Cookie: %b\r\n" % self._admission.set_cookie.encode("ascii")

    def on_response_data(self, data: bytes) -> None:
        self.state.sent += len(data)
        self._out.append(b"%x\r\n%b\r\n" % (len(data), data) if self._adds_chunks else data)

    def flush(self) -> None:
        if self._out:
            self._client.wait_until(self._shared.loop.time() + self._shared.limits.stream_gap_s)
            self._client.write(b"".join(self._out))  # a client that does not read gets another deadline
            self._out.clear()

    def on_response_end(self) -> None:
        self._response_is_done = True
        if self._adds_chunks:
            self._client.write(_LAST_CHUNK)
        upstream = self._release_upstream()
        if upstream is not None:
            if not self._request_is_done:  # the app has answered before it read everything
                upstream.is_reusable = False
                self._keep_alive = False
            self._pool.put(upstream, self.state)
        if self._request_is_done or not self._keep_alive:
            self._finish()

    def on_upgraded(self, data: bytes) -> Tunnel:
        upstream = self._upstream
        assert upstream is not None
        upstream.sink = self._upstream = None
        self._out.clear()
        route = self.route
        assert route is not None
        head_lines = [
            b"HTTP/1.1 101 Switching Protocols\r\n",
            *response_fields(upstream.head_fields, self._request.host),
        ]
        head_lines.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        self._shared.counts.upgrades += 1
        self._log_response(101)
        self._client.write(b"".join(head_lines) + data)
        tunnel = self._client.upgrade(route, upstream)
        self._end()
        return tunnel

    def on_upstream_lost(self, error: Exception | None) -> None:
        upstream = self._upstream
        if self._is_over or upstream is None:
            return
        self._release_upstream()
        if self._status:
            # A response that ends early must look so: a clean end would pass for the whole of it.
            self._log_response(self._status)
            self._end()
            self._client.abort()
        else:
            self._upstream = None
            self._retry(has_been_sent=True)

    def _retry(self, *, has_been_sent: bool) -> None:
        failed_route = self.route
        if failed_route is not None:
            self.state.breaker.record_failure(failed_route, self._shared.loop.time())
        if self._has_retried or not self._is_replayable or not self._may_repeat(has_been_sent=has_been_sent):
            self._fail(502, "The app does not answer.")
            return
        self._has_retried = True
        if failed_route is not None and any(key_of(route) != failed_route for route in self.state.circuit.route_info):
            self._failed = frozenset((failed_route,))
        self._shared.counts.retries += 1
        self._dispatch()

    @property
    def _is_repeatable(self) -> bool:
        """Returns True if the request may be sent to the app twice."""
        return self._request.method in _IDEMPOTENT

    def _may_repeat(self, *, has_been_sent: bool) -> bool:
        return self._is_repeatable or not has_been_sent

    def _fail(self, status: int, detail: str) -> None:
        self._set_route(None)
        self._log_response(status)
        self._end()
        as_page = any(name == b"accept" and b"text/html" in value for name, value in self._request.headers)
        header_fields = b"Retry-After: 2\r\n" if status == 503 else b""
        self._client.reply(error(status, detail, as_page=as_page, fields=header_fields))

    def pause_request(self) -> None:
        self._client.pause()

    def resume_request(self) -> None:
        self._client.resume()

    def pause_response(self) -> None:
        if self._upstream is not None and not self._upstream.transport.is_closing():
            self._upstream.transport.pause_reading()

    def resume_response(self) -> None:
        if self._upstream is not None and not self._upstream.transport.is_closing():
            self._upstream.transport.resume_reading()

    def on_client_lost(self) -> None:
        """Ends the request at the app, because the client can no longer read the response."""
        upstream = self._release_upstream()
        if upstream is not None:
            upstream.abort()
        self._end()

    def cut(self) -> None:
        self._log_response(499)
        self.on_client_lost()
        self._client.abort()

    def expire(self) -> None:
        """Ends an exchange after its app or its client was silent for too long."""
        upstream = self._release_upstream()
        if upstream is not None:
            upstream.abort()
        if self._status or not self._request_is_done:
            self._end()
            self._client.abort()
        else:
            self._fail(504, "The app does not answer in time.")

    def _release_upstream(self) -> Upstream | None:
        upstream, self._upstream = self._upstream, None
        self._set_route(None)
        if upstream is not None:
            upstream.sink = None
        return upstream

    def _set_route(self, key: RouteKey | None) -> None:
        if self.route is not None:
            self.state.change_in_flight(self.route, -1)
        self.route = key
        if key is not None:
            self.state.change_in_flight(key, 1)

    def _finish(self) -> None:
        self._log_response(self._status)
        self._end()
        self._client.finish(keep_alive=self._keep_alive, lingers=not self._request_is_done)

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._set_route(None)
            self.state.remove_connection(self)

    def _log_response(self, status: int) -> None:
        if not self._is_over:
            self._shared.log_response(self.state, self._request.method, self._request.target, status, self._began)
            if is_tracing():
                self._record_span(status)

    def _record_span(self, status: int) -> None:
        """Records a tracing span for the request if the client sent a ``traceparent`` header.

        The app receives that trace context unchanged.
        """
        traceparent = next((value for name, value in self._request.headers if name == _TRACEPARENT), None)
        if traceparent is None:
            return
        ended_at = datetime.now(UTC)
        method = self._request.method.decode("latin-1")
        record_span(
            f"app {method}",
            ended_at - timedelta(seconds=time.monotonic() - self._began),
            ended_at,
            parent=traceparent.decode("latin-1"),
            attributes={"http.request.method": method, "http.response.status_code": status},
            failure=str(status) if status >= 500 else None,
            is_limited=True,
        )
