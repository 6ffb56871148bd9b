"""Serves long-lived replies, Server-Sent Events and WebSockets, which end when the server stops.

Source: client wire contract 1.7 and 1.8: a client pings every 30 s and needs the pong within 15 s; a WebSocket message
is at most 4 MiB; an event stream ends for good only with ``server_close``; every event's data is JSON; every non-empty
line contains a colon; and the first event must not share a TCP segment with the head.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import WSCloseCode, web

from ai.backend.common.errors import BackendError, InternalError
from ai.backend.infra.loop import cancel_all

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 4 << 20
PING_INTERVAL_S = 30.0
HEARTBEAT_S = 15.0
_PAUSE_AFTER_HEAD_S = 0.02
_KEY_CHECK_INTERVAL_S = 1.0
_CLOSE_TIMEOUT_S = 1.0
_KEY_INACTIVE_REASON = b"the access key is no longer active"


@dataclass(eq=False, slots=True)
class _Stream:
    """Represents an open stream. ``key``: the access key that opened it, if any."""

    task: asyncio.Task[Any]
    key: str | None
    socket: web.WebSocketResponse | None
    is_ending: bool = False


ACCESS_KEY: web.RequestKey[str] = web.RequestKey("access_key", str)
"""Returns the access key that signed a request."""
ActiveKeys = Callable[[Collection[str]], Awaitable[set[str]]]
"""Returns which of some access keys are still valid."""


class Streams:
    """Tracks the open streams of a server. ``closing`` notifies each stream that it should end.

    ``active`` is called once a second with the keys of all open streams, if there are any; streams of other keys are
    ended.
    """

    def __init__(self, active: ActiveKeys | None = None) -> None:
        self.closing = asyncio.Event()
        self._active = active
        self._open: set[_Stream] = set()
        self._watch: asyncio.Task[None] | None = None
        self._endings: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def registered(self, request: web.Request, socket: web.WebSocketResponse | None = None) -> Iterator[None]:
        """Registers a stream while the block runs."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a stream is served by a task")
        stream = _Stream(task, request.get(ACCESS_KEY), socket)
        self._open.add(stream)
        if self._active is not None and (self._watch is None or self._watch.done()):
            self._watch = asyncio.create_task(self._end_inactive(self._active), name="stream-keys")
        try:
            yield
        finally:
            self._open.discard(stream)

    async def _end_inactive(self, find_active_keys: ActiveKeys) -> None:
        while open_keys := {stream.key for stream in self._open if stream.key is not None}:
            await asyncio.sleep(_KEY_CHECK_INTERVAL_S)
            try:
                inactive_keys = open_keys - await find_active_keys(open_keys)
            except Exception:  # the next check may succeed
                log.exception("the active access keys could not be read")
                continue
            for stream in [
                open_stream
                for open_stream in self._open
                if open_stream.key in inactive_keys and not open_stream.is_ending
            ]:
                stream.is_ending = True
                end_task = asyncio.create_task(self._end_stream(stream))
                self._endings.add(end_task)
                end_task.add_done_callback(self._endings.discard)

    async def _end_stream(self, stream: _Stream) -> None:
        """Ends a stream. A WebSocket is closed with the reason first."""
        if stream.socket is not None:
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await stream.socket.close(code=WSCloseCode.POLICY_VIOLATION, message=_KEY_INACTIVE_REASON)
        if stream in self._open:
            stream.task.cancel()

    async def close(self, *, timeout_s: float = 2.0) -> None:
        """Asks every stream to end, and cancels the streams that are still open after ``timeout_s``."""
        self.closing.set()
        if self._watch is not None:
            self._watch.cancel()
        sockets = [stream.socket for stream in self._open if stream.socket is not None]
        close_coroutines = [
            stream_socket.close(code=WSCloseCode.GOING_AWAY, message=b"server is stopping") for stream_socket in sockets
        ]
        for close_coroutine in asyncio.as_completed(close_coroutines, timeout=timeout_s) if close_coroutines else ():
            with contextlib.suppress(TimeoutError, ConnectionError):
                await close_coroutine
        running_tasks = {stream.task for stream in self._open}
        if running_tasks:
            _, running_tasks = await asyncio.wait(running_tasks, timeout=timeout_s)
        for task in running_tasks:
            task.cancel()


STREAMS: web.AppKey[Streams] = web.AppKey("streams", Streams)


class SseEvent(msgspec.Struct, frozen=True):
    """Represents one Server-Sent Event. ``data`` is encoded as JSON; clients return ``id`` as ``Last-Event-ID``."""

    name: str
    data: Any
    id: str | None = None

    def encode(self) -> bytes:
        id_line = f"id: {self.id}\n" if self.id is not None else ""
        return f"{id_line}event: {self.name}\ndata: ".encode() + msgspec.json.encode(self.data, enc_hook=str) + b"\n\n"


SERVER_CLOSE = SseEvent("server_close", {})


async def send_events(
    request: web.Request, source: AsyncIterator[SseEvent], *, heartbeat_s: float = HEARTBEAT_S
) -> web.StreamResponse:
    """Sends events until the source ends, the client disconnects or the server stops.

    Only the end of the source is reported as ``server_close``: clients reconnect after a restart of the server. Raises
    BackendError if the first step of the source does.
    """
    streams = request.app[STREAMS]
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache, no-transform",
            "X-Accel-Buffering": "no",
        }
    )
    next_event: asyncio.Future[SseEvent] = asyncio.ensure_future(anext(source))
    with streams.registered(request), contextlib.suppress(ConnectionError):
        # The head is sent when the source listens, so that it reports whatever the client does next.
        await asyncio.wait((next_event,), timeout=_PAUSE_AFTER_HEAD_S)
        if next_event.done() and isinstance(next_event.exception(), BackendError):
            raise next_event.exception() or InternalError()
        try:
            await response.prepare(request)
            await response.write(b": open\n\n")
            await asyncio.sleep(_PAUSE_AFTER_HEAD_S)
            await _relay_events(request, response, source, next_event, streams, heartbeat_s)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("an event stream broke")
        finally:
            await cancel_all(next_event)
            close_source = getattr(source, "aclose", None)
            if close_source is not None:
                await close_source()
        await response.write_eof()
    return response


async def _relay_events(
    request: web.Request,
    response: web.StreamResponse,
    source: AsyncIterator[SseEvent],
    next_event: asyncio.Future[SseEvent],
    streams: Streams,
    heartbeat_s: float,
) -> None:
    server_closing = asyncio.ensure_future(streams.closing.wait())
    try:
        while not server_closing.done():
            finished_futures, _ = await asyncio.wait(
                (server_closing, next_event), timeout=heartbeat_s, return_when=asyncio.FIRST_COMPLETED
            )
            if request.transport is None or request.transport.is_closing():
                return
            if next_event in finished_futures:
                try:
                    event = next_event.result()
                except StopAsyncIteration:
                    await response.write(SERVER_CLOSE.encode())
                    return
                await response.write(event.encode())
                next_event = asyncio.ensure_future(anext(source))
            elif not finished_futures:
                await response.write(b": heartbeat\n\n")
    finally:
        await cancel_all(server_closing, next_event)


@contextlib.asynccontextmanager
async def open_socket(
    request: web.Request, *, heartbeat_s: float | None = PING_INTERVAL_S
) -> AsyncIterator[web.WebSocketResponse]:
    """Opens a WebSocket while the block runs. The WebSocket answers pings and is closed with the server.

    It sends a ping every ``heartbeat_s``, and closes if the reply takes longer than half of that; None sends none. An
    error inside the block closes it with code 1011, because the head has been sent.
    """
    socket = web.WebSocketResponse(heartbeat=heartbeat_s, max_msg_size=MAX_MESSAGE_BYTES, compress=False)
    await socket.prepare(request)
    with request.app[STREAMS].registered(request, socket):
        code, reason = WSCloseCode.OK, b""
        try:
            yield socket
        except BackendError as error:
            code, reason = WSCloseCode.INTERNAL_ERROR, error.message.encode()[:120]
        except ConnectionError:
            pass
        except Exception:
            log.exception("a WebSocket broke")
            code = WSCloseCode.INTERNAL_ERROR
        finally:
            if not socket.closed:
                with contextlib.suppress(ConnectionError):
                    await socket.close(code=code, message=reason)
