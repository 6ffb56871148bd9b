"""Passes a request for a model to a replica of its endpoint, within limits, and repeats the request on failure.

A request without a replica is held. Each request is counted with its tokens.
"""

from __future__ import annotations

import time

from ai.backend.appproxy.worker.access.replies import Response, error
from ai.backend.appproxy.worker.inference.endpoint import ServedRequest
from ai.backend.appproxy.worker.planes.embedded.exchange import Exchange
from ai.backend.appproxy.worker.planes.embedded.model_search import describe_models
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import RoutingKind
from ai.backend.core.proxy.headers import Header
from ai.backend.core.proxy.routing import RouteKey, Target
from ai.backend.core.serving.answers import DEFAULT_OUTPUT_TOKENS, AnswerReader, ModelRequest, read_request
from ai.backend.core.serving.limits import Estimate, Refusal, Reservation
from ai.backend.core.serving.prefixes import hash_blocks
from ai.backend.core.serving.routing import Pick, Prompt
from ai.backend.core.serving.usage import Cost

_SESSION_FIELD = b"x-session-id"
_MAX_SESSION_BYTES = 256
_OVERLOADED = frozenset((502, 503, 504))
_NOT_WAKING = frozenset((b"GET", b"HEAD", b"OPTIONS"))
_ACCEPT_ENCODING = frozenset((b"accept-encoding",))
_QUEUE_FULL = "Too many requests wait for this model."
_CODES = {429: "queue_full", 502: "replica_failed", 503: "no_replica", 504: "timeout"}


class ModelExchange(Exchange):
    """Passes one request to a replica of an endpoint.

    A JSON body is read whole first: it says which replica has seen the prompt.
    """

    _model: ModelRequest | None = None
    _prompt = Prompt()
    _pick: Pick | None = None
    _last: Pick | None = None
    _reader: AnswerReader | None = None
    _reservation: Reservation | None = None
    _pieces: list[bytes]
    _is_reading = False
    _is_waiting = False
    _is_broken = False
    _first_byte_s: float | None = None
    size = 0

    def start(self) -> None:
        request, endpoint = self._request, self.state.endpoint
        assert endpoint is not None
        self._endpoint = endpoint
        self._pieces = []
        session_keys = [value for name, value in request.headers if name == _SESSION_FIELD]
        session_key = session_keys[0][:_MAX_SESSION_BYTES].decode("latin-1") if session_keys else ""
        self._prompt = Prompt(session_key=session_key)
        media_types = [value for name, value in request.headers if name == b"content-type"]
        is_json = bool(media_types) and media_types[0].partition(b";")[0].strip().lower() == b"application/json"
        self._is_reading = request.has_body and request.method == b"POST" and is_json
        if self._is_reading:
            self.state.requests += 1
            self.state.last_used = time.time()
            self.state.add_connection(self)
            self._client.wait_until(self._shared.loop.time() + self._shared.limits.body_gap_s)
        elif self._admit(Estimate(prompt=int(request.content_length or 0) // 4)):
            super().start()

    # The request

    def on_request_data(self, data: bytes) -> None:
        if not self._is_reading:
            super().on_request_data(data)
            return
        if self._is_over:
            return
        self.state.received += len(data)
        self._pieces.append(data)
        self.size += len(data)
        self._shared.model_bytes += len(data)
        limits = self._shared.limits
        if self.size > limits.model_body_bytes:
            self._refuse(error(413, "The request is too large.", model_code="request_too_large"))
        elif self._shared.model_bytes > limits.model_bodies_bytes:
            self._refuse(error(503, "Too much is requested at once.", model_code="overloaded"))

    def on_request_end(self) -> None:
        if not self._is_reading:
            super().on_request_end()
            return
        if self._is_over:
            return
        self._request_is_done = True
        body = b"".join(self._pieces)
        self._pieces.clear()
        estimate = Estimate(prompt=len(body) // 4)
        try:
            model_request = read_request(body)
        except ValueError:
            pass  # not every engine takes objects: this one may
        else:
            body = model_request.body
            output_tokens = DEFAULT_OUTPUT_TOKENS if model_request.max_output is None else model_request.max_output
            estimate = Estimate(prompt=model_request.prompt_tokens, output=output_tokens)
            self._prompt = self._prompt_of(model_request)
            self._model = replace(model_request, body=b"", prompt=b"")
            if model_request.strips_usage:
                self._admission = replace(self._admission, hidden=self._admission.hidden | _ACCEPT_ENCODING)
        if not self._admit(estimate):
            return
        self._keep_for_retry(self._request_head(str(len(body)).encode()))
        self._keep_for_retry(body)
        self._endpoint.budget.count_request()
        self._client.wait_until(self._shared.loop.time() + self._shared.limits.first_byte_s)
        self._dispatch()

    def _prompt_of(self, model_request: ModelRequest) -> Prompt:
        """Returns the properties of the request's prompt that decide which replica serves the request."""
        session_key = self._prompt.session_key
        if self._endpoint.options.routing is not RoutingKind.PREFIX:
            return Prompt(tokens=model_request.prompt_tokens, session_key=session_key)
        salt = f"{model_request.model}\0{model_request.salt}".encode(errors="surrogatepass")
        return Prompt(
            blocks=hash_blocks(model_request.prompt, salt), tokens=model_request.prompt_tokens, session_key=session_key
        )

    def _admit(self, estimate: Estimate) -> bool:
        """Reserves the tokens that the request may cost, or replies that it exceeds a limit of its token."""
        verdict = self._endpoint.admit(self._admission.grant, estimate)
        if not isinstance(verdict, Refusal):
            self._reservation = verdict
            return True
        detail = f"This token is limited to {verdict.limit} {verdict.what}; try again later."
        if verdict.what == "concurrent":
            detail = f"This token is limited to {verdict.limit} open requests."
        wait_s = max(1, int(verdict.retry_after_s + 0.999))
        header_fields = b"Retry-After: %d\r\n" % wait_s + self._endpoint.rate_limit_fields(self._admission.grant)
        self._refuse(error(429, detail, fields=header_fields, model_code="rate_limit_exceeded"))
        return False

    def _refuse(self, response: Response) -> None:
        self._shared.counts.refused[response.reason] += 1
        self._log_response(response.status)
        self._end()
        self._client.reply(response)

    def _drop_large_copy(self) -> None:
        # A request to a model is kept whole until its answer begins: it was read whole, within a limit of all of them.
        if not self._is_reading:
            super()._drop_large_copy()

    # The replica

    def _choose_target(self) -> Target | None:
        endpoint = self._endpoint
        self._leave_replica()
        if endpoint.has_replicas and (not endpoint.is_releasing or self._has_retried or self._is_released):
            pick = endpoint.pick(self._prompt, self._failed, self._shared.loop.time())
            if pick is not None:
                self._pick = self._last = pick
                return pick.target
        self._wait_for_replica()
        return None

    _is_released = False

    def _wait_for_replica(self) -> None:
        """Holds the request until the endpoint has a replica, or answers it with an error if it may not be held.

        A request of a method that does not wake the endpoint is answered at once.
        """
        endpoint, request = self._endpoint, self._request
        if not endpoint.has_replicas and request.method in _NOT_WAKING:
            if request.method == b"GET" and request.target.partition(b"?")[0] == b"/v1/models":
                self._refuse(describe_models(self.state.circuit, endpoint.models))
            else:
                self._fail(503, "The model has no replica now.")
        elif self._failed or (not self._is_reading and request.has_body) or not endpoint.options.hold_requests:
            self._fail(503, "The model has no replica now.")
        elif endpoint.hold(self):
            self._is_waiting = True
            self._client.wait_until(self._shared.loop.time() + endpoint.options.hold_s)
            self._client.resume()
        else:
            self._fail(429, _QUEUE_FULL)

    def release(self) -> None:
        self._is_waiting, self._is_released = False, True
        self._client.wait_until(self._shared.loop.time() + self._shared.limits.first_byte_s)
        self._dispatch()

    def _set_route(self, key: RouteKey | None) -> None:
        if self._pick is not None and key != self._pick.target.key:
            self._leave_replica()
        super()._set_route(key)

    def _leave_replica(self) -> None:
        """Removes the request from the load of its replica."""
        pick, self._pick = self._pick, None
        if pick is not None:
            if not self._status:
                self._endpoint.picker.begin_response(pick)
            self._endpoint.end_request(pick)

    @property
    def _is_repeatable(self) -> bool:
        return self._is_reading or super()._is_repeatable

    def _may_repeat(self, *, has_been_sent: bool) -> bool:
        """Returns True if the request may be sent to another replica.

        No byte of a response may have arrived, and the retry budget must not be used up.
        """
        if has_been_sent and self._is_reading:
            return self._endpoint.budget.take()
        return super()._may_repeat(has_been_sent=has_been_sent)

    # The answer

    def on_response(self, status: int, headers: list[Header], *, keep_alive: bool) -> bool:
        upstream = self._upstream
        if status in _OVERLOADED and upstream is not None and self._can_ask_another_replica():
            self._release_upstream()
            upstream.abort()
            self._shared.loop.call_soon(self._ask_another_replica)
            return False
        self._drop_body()
        self._first_byte_s = time.monotonic() - self._began
        if self._pick is not None:
            self._endpoint.picker.begin_response(self._pick)
        if self._model is not None and status < 400:
            self._reader = self._answer_reader_of(self._model, headers)
        return super().on_response(status, headers, keep_alive=keep_alive)

    def _answer_reader_of(self, model_request: ModelRequest, headers: list[Header]) -> AnswerReader:
        header_values = dict(headers)
        is_event_stream = header_values.get(b"content-type", b"").lower().startswith(b"text/event-stream")
        if b"content-length" in header_values:  # a length that was announced cannot change
            model_request = replace(model_request, strips_usage=False)
        return AnswerReader(model_request, is_events=is_event_stream, is_encoded=b"content-encoding" in header_values)

    def _can_ask_another_replica(self) -> bool:
        return (
            self._is_reading
            and not self._has_retried
            and len(self._endpoint.picker.loads) > 1
            and self._endpoint.budget.take()
        )

    def _ask_another_replica(self) -> None:
        """Sends the request to another replica, because the present one is overloaded."""
        if self._is_over or self._last is None:
            return
        self._avoid_replica(self._last.target.key)
        self._has_retried = True
        self._shared.counts.retries += 1
        self._dispatch()

    def _record_response(self, key: RouteKey, status: int) -> None:
        if status >= 500:
            self.state.breaker.record_failure(key, self._shared.loop.time())
        else:
            super()._record_response(key, status)

    def _proxy_fields(self) -> bytes:
        header_fields = super()._proxy_fields()
        if self._reservation is not None:
            header_fields += self._endpoint.rate_limit_fields(self._admission.grant)
        return header_fields

    def on_response_data(self, data: bytes) -> None:
        if self._reader is not None:
            data = self._reader.feed(data)
        if data:
            super().on_response_data(data)

    def on_response_end(self) -> None:
        if self._reader is not None and (last_data := self._reader.finish()):
            super().on_response_data(last_data)
            self.flush()
        super().on_response_end()

    def on_upstream_lost(self, error: Exception | None) -> None:
        upstream = self._upstream
        if upstream is not None and self._status:
            self._is_broken = True
            self.state.breaker.record_failure(upstream.key, self._shared.loop.time())
        elif upstream is not None and not upstream.idle_since:  # one that has rested may be closed by any server
            self._avoid_replica(upstream.key)
        super().on_upstream_lost(error)

    def _avoid_replica(self, key: RouteKey) -> None:
        """Records that a replica has failed. The next attempt of the request uses another replica if there is one."""
        self.state.breaker.record_failure(key, self._shared.loop.time())
        if len(self._endpoint.picker.loads) > 1:
            self._failed = frozenset((key,))
        self._count_attempt()

    def _retry(self, *, has_been_sent: bool) -> None:
        if self.route is not None:
            self._count_attempt()
        super()._retry(has_been_sent=has_been_sent)

    def _count_attempt(self) -> None:
        """Adds a failed attempt to the usage of the replica that was tried, at most once."""
        failed_pick, self._last = self._last, None
        if failed_pick is not None:
            failed_request = ServedRequest(cost=Cost(), is_error=True, busy_s=0.0, first_byte_s=None)
            self._endpoint.count_request(self._admission.grant, failed_pick, failed_request)

    # The end

    def _fail(self, status: int, detail: str) -> None:
        self._set_route(None)
        self._log_response(status)
        self._is_broken = True
        self._end()
        header_fields = b"Retry-After: 2\r\n" if status in (429, 503) else b""
        self._client.reply(error(status, detail, fields=header_fields, model_code=_CODES.get(status, "error")))

    def expire(self) -> None:
        if self._is_waiting:
            self._fail(503, "No replica of the model became ready in time.")
            return
        if self._upstream is not None and self._request_is_done:
            self._is_broken = True
            self.state.breaker.record_failure(self._upstream.key, self._shared.loop.time())
        super().expire()

    def _end(self) -> None:
        if not self._is_over:
            if self._is_waiting:
                self._is_waiting = False
                self._endpoint.withdraw(self)
            self._drop_body()
            self._count_usage()
        super()._end()

    def _drop_body(self) -> None:
        """Frees the request's body, because its response has begun or will never begin."""
        if self._is_reading:
            self._pieces.clear()
            self._sent.clear()
            self._shared.model_bytes -= self.size
            self.size = 0

    def _count_usage(self) -> None:
        """Counts the tokens and the time that the request cost.

        A request that no replica has begun to
        answer costs nothing.
        """
        cost = self._reader.cost if self._reader is not None else Cost()
        self._endpoint.complete(self._reservation, cost)
        if self._last is not None:
            is_error = self._is_broken or self._status >= 500
            busy_s = time.monotonic() - self._began
            served_request = ServedRequest(cost=cost, is_error=is_error, busy_s=busy_s, first_byte_s=self._first_byte_s)
            self._endpoint.count_request(self._admission.grant, self._last, served_request)
