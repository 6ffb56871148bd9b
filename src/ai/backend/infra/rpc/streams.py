"""Implements two-way streams beside the link, with flow control: a slow reader slows down only its writer."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from enum import IntEnum
from typing import Any, Protocol

import msgspec

from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.structs import replace
from ai.backend.common.wire.execution import PtyFrame
from ai.backend.common.wire.link import ByteStream, PtyStream
from ai.backend.common.wire.methods import StreamKind
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.rpc.frames import DataOffer

log = logging.getLogger(__name__)
CHUNK_BYTES = 256 * 1024
"""The largest piece of a stream."""
WINDOW_BYTES = 1024 * 1024
"""The window of one direction. A MiB is 50 MB/s at a latency of 20 ms."""
LINGER_S = 5.0
_PIECE_COST_BYTES = 256
"""The overhead of a piece in the window, so that single bytes fill it too."""
_FRAME_HEAD_BYTES = 1024
"""The upper bound of the overhead of a terminal's frame."""


class Piece(IntEnum):
    """The kinds of pieces of a stream. The numbers are on the wire."""

    DATA = 8
    """A piece of bytes; an empty one is the last."""
    CREDIT = 9
    """Grants more bytes to send."""


Post = Callable[[Piece, Any], Awaitable[None]]
"""Sends a piece of bytes or a credit to the other end. Raises Unavailable if the carrier is lost."""


def cost_of(piece: bytes) -> int:
    """Returns how much of the window a piece uses."""
    return len(piece) + _PIECE_COST_BYTES


class StreamPort:
    """Represents one end of a stream. When the stream ends, it calls ``on_end`` and the callback of its carrier."""

    def __init__(self, on_end: Callable[[StreamPort], None] = lambda port: None) -> None:
        self._on_end = on_end
        self._post: Post | None = None
        self._end_carrier: Callable[[], None] = lambda: None
        self._incoming: deque[bytes] = deque()
        self._buffered = 0
        self._arrived = asyncio.Event()
        self._credit = WINDOW_BYTES
        self._credited = asyncio.Event()
        self._consumed = 0
        self._ended = asyncio.Event()

    @property
    def has_carrier(self) -> bool:
        return self._post is not None

    def attach(self, post: Post, end_carrier: Callable[[], None]) -> None:
        """Attaches the carrier, once. ``end_carrier`` notifies the peer of the end."""
        self._post, self._end_carrier = post, end_carrier
        if self._ended.is_set():
            end_carrier()

    def deliver(self, piece: bytes) -> bool:
        """Accepts a piece of data from the peer. Returns False if it exceeds the window."""
        if self._buffered > WINDOW_BYTES:
            return False
        self._buffered += cost_of(piece)
        self._incoming.append(piece)
        self._arrived.set()
        return True

    def grant(self, byte_count: int) -> None:
        """Grants more bytes to the sender, never more than the window."""
        self._credit = min(WINDOW_BYTES, self._credit + max(0, byte_count))
        self._credited.set()

    def end(self) -> None:
        """Ends the stream on both sides. Received pieces can still be read. Safe twice."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._arrived.set()
        self._credited.set()
        self._end_carrier()
        self._on_end(self)

    async def wait_until_ended(self) -> None:
        """Waits until the stream has ended."""
        await self._ended.wait()

    async def send(self, piece: bytes) -> None:
        """Sends a piece, and returns once the piece is sent. Raises Unavailable if the stream has ended."""
        while self._credit <= 0 and not self._ended.is_set():
            self._credited.clear()
            await self._credited.wait()
        if self._ended.is_set() or self._post is None:
            raise Unavailable("the stream has ended")
        self._credit -= cost_of(piece)
        await self._post(Piece.DATA, piece)

    async def receive(self) -> bytes | None:
        """Returns the next piece. Returns None once the stream has ended."""
        while not self._incoming:
            if self._ended.is_set():
                return None
            self._arrived.clear()
            await self._arrived.wait()
        piece = self._incoming.popleft()
        cost_bytes = cost_of(piece)
        self._buffered -= cost_bytes
        self._consumed += cost_bytes
        if self._consumed >= WINDOW_BYTES // 2 and not self._ended.is_set() and self._post is not None:
            consumed_bytes, self._consumed = self._consumed, 0
            try:
                await self._post(Piece.CREDIT, consumed_bytes)
            except BackendError:
                self.end()
        return piece


class StreamServer(Protocol):
    """Accepts the connections that carry the streams of this side."""

    def offer(self, port: StreamPort) -> AbstractContextManager[DataOffer]:
        """Yields the offer by which the peer may connect to ``port`` while the block runs.

        Raises Unavailable if the peer cannot connect.
        """


class StreamDialer(Protocol):
    """Opens the connections that carry the streams of the peer."""

    async def dial(self, offer: DataOffer, port: StreamPort) -> None:
        """Connects ``port`` with the end that the peer offers. Raises Unavailable."""


class PortBytes:
    """Implements :class:`~ai.backend.common.wire.link.ByteStream` on one end of a stream."""

    def __init__(self, port: StreamPort) -> None:
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
        for chunk_start in range(0, len(data), CHUNK_BYTES):
            await self._port.send(bytes(view[chunk_start : chunk_start + CHUNK_BYTES]))

    async def write_eof(self) -> None:
        await self._port.send(b"")

    async def close(self) -> None:
        self._port.end()


class PortFrames:
    """Implements :class:`~ai.backend.common.wire.link.PtyStream` on one end of a stream. Each frame is one piece."""

    def __init__(self, port: StreamPort) -> None:
        self._port = port

    async def send(self, frame: PtyFrame) -> None:
        max_bytes = CHUNK_BYTES - _FRAME_HEAD_BYTES
        for data_start in range(0, max(1, len(frame.data)), max_bytes):
            frame_part = replace(frame, data=frame.data[data_start : data_start + max_bytes])
            await self._port.send(msgspec.msgpack.encode(frame_part))

    async def __aiter__(self) -> AsyncIterator[PtyFrame]:
        while (piece := await self._port.receive()) is not None:
            try:
                frame = msgspec.msgpack.decode(piece, type=PtyFrame)
            except msgspec.MsgspecError as e:
                log.warning("a frame of a terminal cannot be read; the terminal is cut: %s", e)
                self._port.end()
                return
            yield frame
            if frame.kind == "closed":
                return

    async def close(self) -> None:
        self._port.end()


def open_end(port: StreamPort, kind: StreamKind) -> PtyStream | ByteStream:
    """Returns the opener's end of a stream of the given kind."""
    return PortBytes(port) if kind == "bytes" else PortFrames(port)


async def serve_end(port: StreamPort, kind: StreamKind, stream: Any) -> None:
    """Connects the handler's stream with its port until either side ends, then closes both sides."""
    try:
        await (_serve_bytes(port, stream) if kind == "bytes" else _serve_frames(port, stream))
    finally:
        port.end()
        await stream.close()


async def _serve_frames(port: StreamPort, stream: PtyStream) -> None:
    peer_end = PortFrames(port)

    async def send_frames() -> None:
        async for frame in stream:
            await peer_end.send(frame)

    async def receive_frames() -> None:
        async for frame in peer_end:
            await stream.send(frame)

    tasks = {asyncio.ensure_future(send_frames()), asyncio.ensure_future(receive_frames())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_all(*tasks)


async def _serve_bytes(port: StreamPort, stream: ByteStream) -> None:
    """Copies bytes in both directions until both directions have ended or one is cut.

    Received bytes are still delivered for a short time.
    """
    peer_end = PortBytes(port)

    async def copy(source: ByteStream, sink: ByteStream) -> None:
        while data := await source.read():
            await sink.write(data)
        await sink.write_eof()

    send_task, receive_task = (
        asyncio.ensure_future(copy(stream, peer_end)),
        asyncio.ensure_future(copy(peer_end, stream)),
    )
    port_end_task = asyncio.ensure_future(port.wait_until_ended())
    copy_tasks: set[asyncio.Future[Any]] = {send_task, receive_task, port_end_task}
    try:
        copy_task = asyncio.ensure_future(asyncio.wait({send_task, receive_task}, return_when=asyncio.FIRST_EXCEPTION))
        copy_tasks.add(copy_task)
        await asyncio.wait({copy_task, port_end_task}, return_when=asyncio.FIRST_COMPLETED)
        if port_end_task.done():
            await asyncio.wait({receive_task}, timeout=LINGER_S)
    finally:
        await cancel_all(*copy_tasks)
