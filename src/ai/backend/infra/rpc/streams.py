"""Two-way streams inside the link, with credit: a slow reader slows its writer and nobody else."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.wire.agent import PtyFrame
from ai.backend.common.wire.link import ByteStream, PtyStream
from ai.backend.infra.rpc.frames import Kind

F = TypeVar("F")
Post = Callable[[Kind, Any], Awaitable[None]]
"""Sends one message of this stream."""
CHUNK_BYTES = 256 * 1024
"""The largest piece of a stream of bytes: what other messages of the link may have to wait for."""
LINGER_S = 5.0
_PIECE_COST = 256
"""What a piece weighs besides its bytes, so that single bytes fill the window too."""


@dataclass(frozen=True, slots=True)
class Flow(Generic[F]):
    """What a stream carries. ``window`` is what may be under way in one direction, in the unit of ``cost``."""

    frame: type[F]
    window: int
    cost: Callable[[F], int]
    is_last: Callable[[F], bool]


FRAMES: Flow[PtyFrame] = Flow(PtyFrame, 64, lambda _: 1, lambda frame: frame.kind == "closed")
BYTES: Flow[bytes] = Flow(bytes, 1024 * 1024, lambda piece: len(piece) + _PIECE_COST, lambda piece: not piece)
"""Pieces of bytes; an empty one says that nothing follows. A MiB is 50 MB/s over a way of 20 ms."""


class StreamPort(Generic[F]):
    """One end of a stream. With ``FRAMES`` a :class:`~ai.backend.common.wire.link.PtyStream`."""

    def __init__(
        self, flow: Flow[F], post: Post, forget: Callable[[], None], *, tell_cut: Callable[[], None] = lambda: None
    ) -> None:
        self.flow = flow
        self._tell_cut = tell_cut
        self._post = post
        self._forget = forget
        self._incoming: deque[F] = deque()
        self._held = 0
        self._news = asyncio.Event()
        self._credit = flow.window
        self._credited = asyncio.Event()
        self._consumed = 0
        self._ended = False
        self._over = asyncio.Event()

    def ride(self, post: Post, forget: Callable[[], None]) -> None:
        """Have its messages go another way from the first one on; ``forget`` is called at its end, too."""
        forget_here, self._post = self._forget, post

        def forget_both() -> None:
            forget_here()
            forget()

        self._forget = forget_both
        if self._ended:
            forget()

    def deliver(self, frame: F) -> bool:
        """Take a frame from the far side. False: it sent more than it may."""
        if self._held > self.flow.window:
            return False
        self._held += self.flow.cost(frame)
        self._incoming.append(frame)
        self._news.set()
        return True

    def grant(self, count: int) -> None:
        """More may be sent, never more than the window: what is on its way is kept here if the far side takes none."""
        self._credit = min(self.flow.window, self._credit + max(0, count))
        self._credited.set()

    def end(self) -> None:
        """The far side, or the link, has ended it. What has arrived can still be read."""
        self._ended = True
        self._over.set()
        self._news.set()
        self._credited.set()
        self._forget()

    def cut(self) -> None:
        """What it rode on is gone without a word. The far side may not know of the ride, so the link tells it."""
        if not self._ended:
            self.end()
            self._tell_cut()

    async def over(self) -> None:
        """Wait until either side, or the link, has ended it."""
        await self._over.wait()

    async def send(self, frame: F) -> None:
        while self._credit <= 0 and not self._ended:
            self._credited.clear()
            await self._credited.wait()
        if self._ended:
            raise Unavailable("the stream has ended")
        self._credit -= self.flow.cost(frame)
        await self._post(Kind.DATA, frame)

    async def receive(self) -> F | None:
        """The next frame; None once it has ended."""
        while not self._incoming:
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        frame = self._incoming.popleft()
        cost = self.flow.cost(frame)
        self._held -= cost
        self._consumed += cost
        if self._consumed >= self.flow.window // 2 and not self._ended:
            consumed, self._consumed = self._consumed, 0
            try:
                await self._post(Kind.CREDIT, consumed)
            except BackendError:
                self.end()
        return frame

    async def __aiter__(self) -> AsyncIterator[F]:
        while (frame := await self.receive()) is not None:
            yield frame
            if self.flow.is_last(frame):
                return

    async def close(self) -> None:
        if self._ended:
            return
        self.end()
        try:
            await self._post(Kind.END, None)
        except BackendError:
            pass  # the link is gone, and the stream with it


class BytesOverFrames:
    """A :class:`~ai.backend.common.wire.link.ByteStream` on one end of a stream of pieces."""

    def __init__(self, port: StreamPort[bytes]) -> None:
        self._port = port
        self._has_read_all = False

    async def read(self) -> bytes:
        if self._has_read_all:
            return b""
        piece = await self._port.receive()
        if piece is None:
            raise Unavailable("the connection was cut")
        self._has_read_all = not piece
        return piece

    async def write(self, data: bytes) -> None:
        if len(data) <= CHUNK_BYTES:
            if data:
                await self._port.send(data)
            return
        view = memoryview(data)
        for start in range(0, len(data), CHUNK_BYTES):
            await self._port.send(bytes(view[start : start + CHUNK_BYTES]))

    async def write_eof(self) -> None:
        await self._port.send(b"")

    async def close(self) -> None:
        await self._port.close()


async def serve_frames(port: StreamPort[PtyFrame], stream: PtyStream) -> None:
    """Connect the handler's stream with its port until either ends, then close both."""

    async def outward() -> None:
        async for frame in stream:
            await port.send(frame)

    async def inward() -> None:
        async for frame in port:
            await stream.send(frame)

    tasks = {asyncio.ensure_future(outward()), asyncio.ensure_future(inward())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await port.close()
        await stream.close()


async def serve_bytes(port: StreamPort[bytes], stream: ByteStream) -> None:
    """Connect the handler's stream with its port until both ways have ended or either is cut, then close both.

    What the far side had said before it went is still handed on, if the stream takes it soon.
    """
    far = BytesOverFrames(port)

    async def copy(source: ByteStream, sink: ByteStream) -> None:
        while data := await source.read():
            await sink.write(data)
        await sink.write_eof()

    outward, inward = asyncio.ensure_future(copy(stream, far)), asyncio.ensure_future(copy(far, stream))
    over = asyncio.ensure_future(port.over())
    tasks: set[asyncio.Future[Any]] = {outward, inward, over}
    try:
        copying = asyncio.ensure_future(asyncio.wait({outward, inward}, return_when=asyncio.FIRST_EXCEPTION))
        tasks.add(copying)
        await asyncio.wait({copying, over}, return_when=asyncio.FIRST_COMPLETED)
        if over.done():
            await asyncio.wait({inward}, timeout=LINGER_S)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await port.close()
        await stream.close()
