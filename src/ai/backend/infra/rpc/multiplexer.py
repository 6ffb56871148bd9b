"""Multiplexes calls and streams in both directions over one connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import KW_ONLY, dataclass
from typing import Any

import msgspec

from ai.backend.common import errors
from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.wire.methods import Method, StreamKind
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.rpc.frames import DataOffer, Envelope, Kind, WireError, decode_body, encode
from ai.backend.infra.rpc.methods import Service
from ai.backend.infra.rpc.streams import StreamDialer, StreamPort, StreamServer, open_end, serve_end
from ai.backend.infra.telemetry import bind_log_context, log_context
from ai.backend.infra.telemetry.tracing import child_span, current_traceparent

log = logging.getLogger(__name__)
Send = Callable[[bytes], Awaitable[None]]
"""Sends one message; raises Unavailable if there is no connection."""
_MAX_OPEN_CALLS = 4096


def _ids_of(request: object) -> dict[str, object]:
    """Returns the ids in a request, for the log records of its handler."""
    return {name: value for name in ("session_id", "kernel_id") if (value := getattr(request, name, None)) is not None}


@dataclass(eq=False)
class Multiplexer:
    """Carries the calls and streams of one connection.

    ``service`` answers the calls of the peer; those that name one of several agents are answered by its service, of
    which ``service_of`` raises Unavailable if it is not here.
    """

    peer: str
    send: Send
    _: KW_ONLY
    service: Service | None = None
    service_of: Callable[[str], Service] | None = None
    max_message_bytes: int
    deadline_scale: float = 1.0
    server: StreamServer | None = None
    dialer: StreamDialer | None = None

    def __post_init__(self) -> None:
        self._number = 0
        self._waiting: dict[int, tuple[Method, asyncio.Future[Any]]] = {}
        self._serving: dict[int, tuple[Method, asyncio.Task[None]]] = {}
        self._streams: set[StreamPort] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open_stream(self, method: Method, request: object, *, agent: str = "") -> Any:
        """Opens a stream to the peer, and returns a PtyStream or a ByteStream as the method requires.

        Raises as ``call``.
        """
        if self.server is None or method.stream is None:
            raise Unavailable(f"this side opens no streams by {method.name}")
        port = self._new_port()
        try:
            with self.server.offer(port) as offer:
                await self.call(method, request, offer, agent=agent)
            if not port.has_carrier:
                raise Unavailable(f"{self.peer} did not connect for {method.name}")
        except BaseException:
            port.end()
            raise
        return open_end(port, method.stream)

    def _new_port(self) -> StreamPort:
        port = StreamPort(self._streams.discard)
        self._streams.add(port)
        return port

    async def call(self, method: Method, request: object, offer: DataOffer | None = None, *, agent: str = "") -> Any:
        """Calls a method of the peer and returns the result.

        Raises what the peer raised, DeadlineExceeded, Unavailable, or LimitExceeded for a large request.
        A call that is part of a trace is a span of the trace, and so is the handling of the call at the peer.
        """
        span_attributes = {"rpc.method": method.name, "rpc.system": "backendai"}
        with child_span(method.name, kind="client", attributes=span_attributes):
            self._number += 1
            call_number = self._number
            if len(self._waiting) >= _MAX_OPEN_CALLS:
                raise Unavailable(f"{self.peer} is behind with {_MAX_OPEN_CALLS} calls")
            message = encode(
                Kind.CALL,
                call_number,
                method.name,
                request,
                limit=self.max_message_bytes,
                offer=offer,
                agent=agent,
                trace=current_traceparent(),
                request_id=log_context().get("request_id"),
            )
            timeout_s = method.deadline_of(request) * self.deadline_scale
            reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._waiting[call_number] = (method, reply)
            try:
                await self.send(message)
                finished_calls, _ = await asyncio.wait({reply}, timeout=timeout_s)
                if finished_calls:
                    return reply.result()
                self._send_soon(Kind.CANCEL, call_number)
                raise errors.DeadlineExceeded(f"{self.peer} did not answer {method.name} within {timeout_s:g} s")
            except asyncio.CancelledError:
                self._send_soon(Kind.CANCEL, call_number)
                raise
            finally:
                self._waiting.pop(call_number, None)
                reply.cancel()

    @property
    def is_waiting(self) -> bool:
        """Returns True if calls or streams of this side are open."""
        return bool(self._waiting or self._streams)

    def feed(self, envelope: Envelope) -> None:
        """Processes one message that was received from the peer.

        Raises msgspec.MsgspecError if the message cannot be decoded.
        """
        call_number = envelope.id
        match envelope.kind:
            case Kind.CALL:
                self._serve_call(envelope)
            case Kind.REPLY:
                self._resolve_call(call_number, envelope)
            case Kind.ERROR:
                error = decode_body(envelope.body, WireError)
                self._fail_call(call_number, errors.from_wire(error.code, error.message, error.data))
            case Kind.CANCEL:
                served_call = self._serving.get(call_number)
                if served_call is not None and served_call[0].abandonable:
                    served_call[1].cancel()
            case _:
                log.warning("%s sent a message of the unknown kind %s", self.peer, envelope.kind)

    def _resolve_call(self, call_number: int, envelope: Envelope) -> None:
        waiting_call = self._waiting.get(call_number)
        if waiting_call is None or waiting_call[1].done():
            return
        method, reply = waiting_call
        try:
            reply.set_result(decode_body(envelope.body, method.reply))
        except msgspec.MsgspecError as e:
            reply.set_exception(errors.InternalError(f"{self.peer} answered {method.name} with something else: {e}"))

    def _fail_call(self, call_number: int, error: BackendError) -> None:
        waiting_call = self._waiting.get(call_number)
        if waiting_call is not None and not waiting_call[1].done():
            waiting_call[1].set_exception(error)

    def _serve_call(self, envelope: Envelope) -> None:
        try:
            service = self._service_for(envelope.agent)
        except Unavailable as e:
            self._spawn(self._send_error(envelope.id, e))
            return
        method = service.methods.get(envelope.name)
        if method is None:
            error = errors.InvalidInput(f"there is no method {envelope.name[:64]!r}", data={"method": "unknown"})
            self._spawn(self._send_error(envelope.id, error))
            return
        if envelope.id in self._serving:
            return
        if len(self._serving) >= _MAX_OPEN_CALLS:
            self._spawn(self._send_error(envelope.id, Unavailable("too many calls are under way")))
            return
        task = asyncio.create_task(self._answer(service, method, envelope))
        self._serving[envelope.id] = (method, task)
        task.add_done_callback(lambda _: self._serving.pop(envelope.id, None))

    def _service_for(self, agent: str) -> Service:
        if agent and self.service_of is not None:
            return self.service_of(agent)
        if self.service is None:
            raise Unavailable("not ready yet")
        return self.service

    async def _answer(self, service: Service, method: Method, envelope: Envelope) -> None:
        call_number = envelope.id
        try:
            try:
                request = decode_body(envelope.body, method.request)
            except msgspec.MsgspecError as e:
                raise errors.InvalidInput(f"{method.name}: {e}", data={"request": str(e)}) from None
            server_span = child_span(method.name, kind="server", parent=envelope.trace)
            with bind_log_context(request_id=envelope.request_id, **_ids_of(request)), server_span:
                reply = await service.call(method, request)
            if method.stream is not None:
                await self._accept(method.stream, reply, envelope.offer)
                reply = None
            await self._send_reply(Kind.REPLY, call_number, reply)
        except BackendError as e:
            await self._send_error(call_number, e)

    async def _accept(self, kind: StreamKind, stream: Any, offer: DataOffer | None) -> None:
        """Connects the stream that a handler has opened with the end that the peer offers."""
        port = self._new_port()
        try:
            if offer is None or self.dialer is None:
                raise Unavailable("there is no way to connect a stream")
            await self.dialer.dial(offer, port)
        except BaseException:
            port.end()
            await stream.close()
            raise
        self._spawn(serve_end(port, kind, stream))

    async def _send_reply(self, kind: Kind, call_number: int, body: Any = None) -> None:
        await self.send(encode(kind, call_number, "", body, limit=self.max_message_bytes))

    async def _send_error(self, call_number: int, error: BackendError) -> None:
        try:
            data = msgspec.to_builtins(error.data, str_keys=True)
            await self._send_reply(Kind.ERROR, call_number, WireError(error.code, error.message, data))
        except (Unavailable, errors.LimitExceeded, TypeError, msgspec.MsgspecError) as e:
            log.warning("an error for %s is lost (%s): %s", self.peer, e, error)

    def _send_soon(self, kind: Kind, call_number: int) -> None:
        async def post() -> None:
            try:
                await self._send_reply(kind, call_number)
            except BackendError:
                pass  # the peer is gone

        self._spawn(post())

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def fail_all(self, error: Unavailable) -> None:
        """Handles a lost connection. Calls fail, streams end, and handlers whose reply nobody awaits are stopped."""
        for call_number in list(self._waiting):
            self._fail_call(call_number, error)
        for port in list(self._streams):
            port.end()
        for method, task in list(self._serving.values()):
            if method.abandonable:
                task.cancel()

    async def close(self) -> None:
        """Ends all calls and streams and waits for them."""
        self.fail_all(Unavailable("the link is closed"))
        await cancel_all(*self._tasks, *(task for _, task in self._serving.values()))
