"""Calls and streams in both directions over one connection, whatever carries its messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec

from ai.backend.common.errors import (
    BackendError,
    DeadlineExceeded,
    InternalError,
    InvalidInput,
    LimitExceeded,
    Unavailable,
    from_wire,
)
from ai.backend.common.wire.methods import Method
from ai.backend.infra.rpc.data_dialer import DataDialer
from ai.backend.infra.rpc.data_server import DataServer
from ai.backend.infra.rpc.frames import DataOffer, Envelope, Kind, WireError, decode_body, encode
from ai.backend.infra.rpc.proxies import Service
from ai.backend.infra.rpc.streams import BYTES, FRAMES, BytesOverFrames, StreamPort, serve_bytes, serve_frames

log = logging.getLogger(__name__)
Send = Callable[[bytes], Awaitable[None]]
"""Puts one message on the connection; raises Unavailable if there is none."""
_MAX_OUTSTANDING = 4096


class Multiplexer:
    """One connection's calls. ``service`` answers those of the far side.

    ``data`` takes connections for the streams of bytes that this side opens, ``dialer`` makes them for those that it
    accepts; without them the link carries all.
    """

    def __init__(
        self,
        peer: str,
        send: Send,
        *,
        service: Service | None = None,
        max_message_bytes: int,
        deadline_scale: float = 1.0,
        data: DataServer | None = None,
        dialer: DataDialer | None = None,
    ) -> None:
        self.peer = peer
        self.service = service
        self._send = send
        self._limit = max_message_bytes
        self._scale = deadline_scale
        self._server = data
        self._dialer = dialer
        self._number = 0
        self._waiting: dict[int, tuple[Method, asyncio.Future[Any]]] = {}
        self._serving: dict[int, tuple[Method, asyncio.Task[None]]] = {}
        self._opened: dict[int, StreamPort[Any]] = {}
        self._accepted: dict[int, StreamPort[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- calling ----------------------------------------------------------------------------------------------------

    async def open_stream(self, method: Method, request: object) -> Any:
        """A PtyStream or a ByteStream, as the method says. Raises as ``call``."""
        self._number += 1
        number = self._number
        port = self._opened[number] = self._port(number, self._opened, method)
        try:
            with self._offer(port, method) as offer:
                await self.call(method, request, number, offer)
        except BaseException:
            port.end()
            raise
        return BytesOverFrames(port) if method.stream == "bytes" else port

    def _offer(self, port: StreamPort[Any], method: Method) -> AbstractContextManager[DataOffer | None]:
        if self._server is None or method.stream != "bytes":
            return nullcontext()
        return self._server.offer(port)

    async def call(
        self, method: Method, request: object, number: int | None = None, offer: DataOffer | None = None
    ) -> Any:
        """Raises what the far side raised, DeadlineExceeded, Unavailable, or LimitExceeded for too large a request."""
        if number is None:
            self._number += 1
            number = self._number
        if len(self._waiting) >= _MAX_OUTSTANDING:
            raise Unavailable(f"{self.peer} is behind with {_MAX_OUTSTANDING} calls")
        message = encode(Kind.CALL, number, method.name, request, limit=self._limit, offer=offer)
        timeout_s = method.deadline_of(request) * self._scale
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (method, reply)
        try:
            await self._send(message)
            done, _ = await asyncio.wait({reply}, timeout=timeout_s)
            if done:
                return reply.result()
            self._post_soon(Kind.CANCEL, number)
            raise DeadlineExceeded(f"{self.peer} did not answer {method.name} within {timeout_s:g} s")
        except asyncio.CancelledError:
            self._post_soon(Kind.CANCEL, number)
            raise
        finally:
            self._waiting.pop(number, None)
            reply.cancel()

    @property
    def is_waiting(self) -> bool:
        """Whether calls or streams of this side are open."""
        return bool(self._waiting or self._opened)

    # ---- receiving --------------------------------------------------------------------------------------------------

    def feed(self, envelope: Envelope) -> None:
        """Takes one message. Raises msgspec.MsgspecError for one that cannot be read."""
        number = envelope.id
        match envelope.kind:
            case Kind.CALL:
                self._serve(envelope)
            case Kind.REPLY:
                self._resolve(number, envelope)
            case Kind.ERROR:
                error = decode_body(envelope.body, WireError)
                self._fail(number, from_wire(error.code, error.message, error.data))
            case Kind.CANCEL:
                served = self._serving.get(number)
                if served is not None and served[0].abandonable:
                    served[1].cancel()
                elif served is None and (port := self._accepted.get(number)) is not None:
                    port.end()  # its answer came too late
            case Kind.DATA:
                self._data(number, envelope)
            case Kind.CREDIT:
                if (port := self._stream(number)) is not None:
                    port.grant(decode_body(envelope.body, int))
            case Kind.END:
                if (port := self._stream(number)) is not None:
                    port.end()
            case _:
                log.warning("%s sent a message of the unknown kind %s", self.peer, envelope.kind)

    def _resolve(self, number: int, envelope: Envelope) -> None:
        waiting = self._waiting.get(number)
        if waiting is None or waiting[1].done():
            return
        method, reply = waiting
        try:
            reply.set_result(decode_body(envelope.body, method.reply))
        except msgspec.MsgspecError as e:
            reply.set_exception(InternalError(f"{self.peer} answered {method.name} with something else: {e}"))

    def _fail(self, number: int, error: BackendError) -> None:
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting[1].done():
            waiting[1].set_exception(error)

    def _data(self, number: int, envelope: Envelope) -> None:
        port = self._stream(number)
        if port is not None and not port.deliver(decode_body(envelope.body, port.flow.frame)):
            log.warning("%s sent more of a stream than it may; the stream is ended", self.peer)
            port.end()
            self._post_soon(Kind.END, number)

    def _stream(self, number: int) -> StreamPort[Any] | None:
        return self._opened.get(number) or self._accepted.get(number)

    # ---- serving ----------------------------------------------------------------------------------------------------

    def _serve(self, envelope: Envelope) -> None:
        service = self.service
        if service is None:
            self._post_error_soon(envelope.id, Unavailable("not ready yet"))
            return
        method = service.methods.get(envelope.name)
        if method is None:
            error = InvalidInput(f"there is no method {envelope.name[:64]!r}", data={"method": "unknown"})
            self._post_error_soon(envelope.id, error)
            return
        if envelope.id in self._serving:
            return
        if len(self._serving) >= _MAX_OUTSTANDING:
            self._post_error_soon(envelope.id, Unavailable("too many calls are under way"))
            return
        task = asyncio.create_task(self._answer(service, method, envelope))
        self._serving[envelope.id] = (method, task)
        task.add_done_callback(lambda _: self._serving.pop(envelope.id, None))

    async def _answer(self, service: Service, method: Method, envelope: Envelope) -> None:
        number = envelope.id
        try:
            try:
                request = decode_body(envelope.body, method.request)
            except msgspec.MsgspecError as e:
                raise InvalidInput(f"{method.name}: {e}", data={"request": str(e)}) from None
            reply = await service.call(method, request)
            if method.stream is not None:
                await self._accept(number, reply, method, envelope.offer)
                reply = None
            await self._post(Kind.REPLY, number, reply)
        except BackendError as e:
            await self._post_error(number, e)

    async def _accept(self, number: int, stream: Any, method: Method, offer: DataOffer | None) -> None:
        port = self._accepted[number] = self._port(number, self._accepted, method)
        if offer is not None and self._dialer is not None and method.stream == "bytes":
            try:
                await self._dialer.dial(offer, port)
            except BaseException:
                port.end()
                await stream.close()
                raise
        self._spawn(serve_bytes(port, stream) if method.stream == "bytes" else serve_frames(port, stream))

    def _port(self, number: int, ports: dict[int, StreamPort[Any]], method: Method) -> StreamPort[Any]:
        async def post(kind: Kind, body: Any) -> None:
            await self._post(kind, number, body)

        def forget() -> None:
            ports.pop(number, None)

        flow = BYTES if method.stream == "bytes" else FRAMES
        return StreamPort(flow, post, forget, tell_cut=lambda: self._post_soon(Kind.END, number))

    # ---- sending ----------------------------------------------------------------------------------------------------

    async def _post(self, kind: Kind, number: int, body: Any = None) -> None:
        await self._send(encode(kind, number, "", body, limit=self._limit))

    async def _post_error(self, number: int, error: BackendError) -> None:
        try:
            data = msgspec.to_builtins(error.data, str_keys=True)
            await self._post(Kind.ERROR, number, WireError(error.code, error.message, data))
        except (Unavailable, LimitExceeded, TypeError, msgspec.MsgspecError) as e:
            log.warning("an error for %s is lost (%s): %s", self.peer, e, error)

    def _post_soon(self, kind: Kind, number: int) -> None:
        async def post() -> None:
            try:
                await self._post(kind, number)
            except BackendError:
                pass  # there is nobody to tell

        self._spawn(post())

    def _post_error_soon(self, number: int, error: BackendError) -> None:
        self._spawn(self._post_error(number, error))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def lose(self, error: Unavailable) -> None:
        """The connection is gone: calls fail, streams end, and handlers stop whose answers nobody awaits."""
        for number in list(self._waiting):
            self._fail(number, error)
        for port in [*self._opened.values(), *self._accepted.values()]:
            port.end()
        for method, task in list(self._serving.values()):
            if method.abandonable:
                task.cancel()

    async def close(self) -> None:
        """Lose the connection and wait until nothing of it is left."""
        self.lose(Unavailable("the link is closed"))
        tasks = [*self._tasks, *(task for _, task in self._serving.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
