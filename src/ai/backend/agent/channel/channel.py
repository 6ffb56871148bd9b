"""Connects the agent with one runner: frames in order, requests with replies, and reconnection without loss."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ai.backend.common.errors import (
    BackendError,
    Conflict,
    DeadlineExceeded,
    Forbidden,
    InvalidInput,
    LimitExceeded,
    NotFound,
    RunError,
    Unavailable,
    WorkloadError,
)
from ai.backend.infra.retry import Backoff
from ai.backend.plugin.runtime import RunnerChannel

log = logging.getLogger(__name__)
Frame = Mapping[str, Any]
Chunk = tuple[int, str]
"""The number of an archive, and a part of it in base64."""
_CHUNK_OVERHEAD = 512
"""The bytes that each chunk counts for in addition to its text, so that the number of empty chunks is bounded."""
OpenChannel = Callable[[int], Awaitable[RunnerChannel]]
"""Opens the stream behind a sequence number."""
_REOPEN_BACKOFF = Backoff(0.05, 2.0)
_ERROR_OF_TYPE: dict[str, type[BackendError]] = {
    "not-found": NotFound,
    "denied": Forbidden,
    "too-large": LimitExceeded,
    "invalid": InvalidInput,
}


class StartFailed(WorkloadError):
    """Raised when the workload exists but its runner did not become ready in time."""


class WorkloadEnded(WorkloadError):
    """Raised when the workload ends during an operation on it."""


class FrameSink(Protocol):
    """Receives every frame of a runner."""

    def on_frame(self, frame: Frame, seq: int) -> None:
        """Handles a frame of the runner. The method must not raise or wait."""

    def on_exit(self, frame: Frame | None) -> None:
        """Handles the end of the workload, after which no frame follows.

        ``frame`` is the last one of the shim.
        """


@dataclass(slots=True, eq=False)
class _Request:
    done: asyncio.Future[dict[str, Any]]
    chunk_space: int
    chunks: list[Chunk] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class KernelChannel:
    """Exchanges frames with the runner of one kernel. A stream that breaks is opened again after frame ``received``."""

    _open_channel: OpenChannel
    received: int
    next_request: int
    problem: str | None = field(default=None, init=False)
    """The runner's message about a failed preparation of the session, such as an image's start script that fails."""
    _stream: RunnerChannel | None = field(default=None, init=False)
    _reader: asyncio.Task[None] | None = field(default=None, init=False)
    _pending_requests: dict[int, _Request] = field(default_factory=dict, init=False)
    _sinks: list[FrameSink] = field(default_factory=list, init=False)
    _is_ready_event: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _connected: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _ended: Frame | None = field(default=None, init=False)
    _closed: bool = field(default=False, init=False)
    _reopen_failures: int = field(default=0, init=False)

    def add_sink(self, sink: FrameSink) -> None:
        self._sinks.append(sink)

    @property
    def ended(self) -> bool:
        return self._ended is not None

    async def connect(self) -> None:
        """Opens the runner's stream. Raises Unavailable without a live runner, Conflict if a newer agent drives it."""
        if self._stream is None and self._reader is None:
            self._receive_from(await self._open_channel(self.received))

    async def wait_ready(self, timeout_s: float) -> None:
        """Waits until the runner is ready for code. Raises StartFailed after the time, or if its workload ended."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_ready_event.wait()
        except TimeoutError:
            raise StartFailed(f"the runner was not ready within {timeout_s:g} s") from None
        if self._ended is not None:
            raise StartFailed(f"the workload ended before it was ready: {describe_exit(self._ended)}")

    async def close(self) -> None:
        """Closes the connection to the runner, which keeps running. Safe to call twice."""
        self._closed = True
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            await asyncio.wait({reader})
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()
        self._fail_requests(Unavailable("the agent let go of this kernel"))
        self._sinks.clear()

    async def send(self, frame: Frame) -> None:
        """Sends a frame on the present or the next connection. Raises WorkloadEnded, or Unavailable after the time."""
        for _ in range(2):
            stream = await self._live_stream()
            try:
                return await stream.send(frame)
            except Unavailable:
                self._connected.clear()
        raise Unavailable("the runner cannot be reached")

    async def _live_stream(self) -> RunnerChannel:
        if self._ended is None and not self._closed and not self._connected.is_set():
            try:
                async with asyncio.timeout(5.0):
                    await self._connected.wait()
            except TimeoutError:
                raise Unavailable("the runner cannot be reached") from None
        if self._ended is not None:
            raise WorkloadEnded(f"the session's workload has ended: {describe_exit(self._ended)}")
        if self._closed or self._stream is None:
            raise Unavailable("the agent let go of this kernel")
        return self._stream

    async def ack(self, seq: int) -> None:
        """Acknowledges frames up to ``seq``, which the shim then drops. A lost acknowledgement only costs memory."""
        if self._stream is not None and not self._closed and self._ended is None:
            try:
                await self._stream.ack(seq)
            except Unavailable:
                log.debug("an acknowledgement was lost; the next one covers it")

    async def request(
        self, frame: dict[str, Any], timeout_s: float, *, chunk_space: int = 0
    ) -> tuple[dict[str, Any], list[Chunk]]:
        """Sends a request to the runner, and returns the data of its reply and the chunks that preceded the reply.

        The chunks may take ``chunk_space`` bytes.

        Raises:
            NotFound, Forbidden, LimitExceeded, InvalidInput, RunError: the runner's error reply.
            LimitExceeded: the chunks are larger.
            DeadlineExceeded, Unavailable, WorkloadEnded: there is no reply.
        """
        request_number, self.next_request = self.next_request, self.next_request + 1
        request = self._pending_requests[request_number] = _Request(
            asyncio.get_running_loop().create_future(), chunk_space
        )
        try:
            async with asyncio.timeout(timeout_s):
                await self.send({**frame, "req": request_number})
                return await request.done, request.chunks
        except TimeoutError:
            raise DeadlineExceeded(f"the runner did not answer {frame['t']} within {timeout_s:g} s") from None
        finally:
            del self._pending_requests[request_number]

    def _receive_from(self, stream: RunnerChannel) -> None:
        """Receives the stream's frames by a callback, or in a task if the stream takes no callback."""
        self._stream = stream
        self._connected.set()
        self._reader = None
        if not stream.listen(self._on_frame):
            self._reader = asyncio.create_task(self._read_stream(stream), name="runner-channel")

    def _on_frame(self, frame: Frame | None) -> None:
        stream = self._stream
        if frame is None:
            if stream is not None and not self._closed and not self.ended:
                self._reader = asyncio.create_task(self._reopen(stream), name="runner-channel")
            return
        try:
            self._handle_frame(frame)
        except Exception:
            log.exception("a frame of a runner could not be handled")

    async def _read_stream(self, stream: RunnerChannel) -> None:
        try:
            async for frame in stream.recv():
                self._handle_frame(frame)
        except Unavailable as e:
            log.info("a runner's channel broke: %s", e)
        except Exception:
            log.exception("a runner's channel failed")
        if not self.ended:
            await self._reopen(stream)

    async def _reopen(self, stream: RunnerChannel) -> None:
        self._connected.clear()
        self._fail_requests(Unavailable("the connection to the runner was lost"))
        self._stream = None
        await stream.close()
        while not self._closed and self._ended is None:
            await asyncio.sleep(_REOPEN_BACKOFF.delay_s(self._reopen_failures))
            self._reopen_failures += 1
            try:
                stream = await self._open_channel(self.received)
            except Conflict as e:
                log.error("another agent drives this runner: %s", e)
                return
            except BackendError as e:
                if self._reopen_failures == 1:
                    log.info("a runner's channel cannot be opened again yet: %s", e)
            except Exception:
                log.exception("a runner's channel cannot be opened again")
            else:
                self._receive_from(stream)
                return

    def _handle_frame(self, frame: Frame) -> None:
        self._reopen_failures = 0
        message_type, seq = frame.get("t"), frame.get("seq")
        if isinstance(seq, int):
            if seq <= self.received:
                return
            self.received = seq
        if message_type == "exited":
            self._deliver_end(frame)
        elif message_type == "ready":
            self.problem = str(frame["problem"]) if frame.get("problem") else None
            self._is_ready_event.set()
        elif message_type in ("reply", "chunk"):
            self._answer_request(frame)
        for sink in self._sinks:
            try:
                sink.on_frame(frame, self.received)
            except Exception:
                log.exception("a frame of type %s could not be handled", message_type)

    def _answer_request(self, frame: Frame) -> None:
        request = self._pending_requests.get(frame.get("req", -1))
        if request is None or request.done.done():
            return
        if frame["t"] == "chunk":
            _take_chunk(request, int(frame.get("index", 0)), str(frame.get("data", "")))
        elif frame.get("ok"):
            reply_data = frame.get("data")
            request.done.set_result(reply_data if isinstance(reply_data, dict) else {})
        else:
            error = frame.get("error") or {}
            error_class = _ERROR_OF_TYPE.get(str(error.get("type")), RunError)
            request.done.set_exception(error_class(str(error.get("message", "the runner failed"))))

    def _deliver_end(self, frame: Frame) -> None:
        self._ended = frame
        self._fail_requests(WorkloadEnded(f"the session's workload has ended: {describe_exit(frame)}"))
        self._is_ready_event.set()
        self._connected.set()
        for sink in self._sinks:
            sink.on_exit(frame)

    def on_workload_end(self) -> None:
        """Handles the end of the workload if the runtime, and not the runner, has reported it."""
        if self._ended is None:
            self._deliver_end({"t": "exited", "code": None, "signal": None, "reason": "gone"})

    def _fail_requests(self, error: BackendError) -> None:
        for request in self._pending_requests.values():
            if not request.done.done():
                request.done.set_exception(error)
                request.done.exception()  # its waiter may be gone


def _take_chunk(request: _Request, index: int, encoded_chunk: str) -> None:
    """Adds a chunk of the runner's reply to its request. Fails the request if the chunks exceed its space.

    The chunks of a failed request are dropped.
    """
    request.chunk_space -= len(encoded_chunk) + _CHUNK_OVERHEAD
    request.chunks.append((index, encoded_chunk))
    if request.chunk_space < 0:
        request.chunks.clear()
        request.done.set_exception(LimitExceeded("the runner sent more than was asked for"))


def describe_exit(frame: Frame) -> str:
    if frame.get("signal"):
        return f"signal {frame['signal']}"
    if frame.get("code") is not None:
        return f"exit code {frame['code']}"
    return str(frame.get("reason") or "unknown reason")
