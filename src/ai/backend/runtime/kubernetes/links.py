"""Connects the agent with one pod's relay, for commands to the pod and for the channel to its runner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from ai.backend.common.errors import Unavailable
from ai.backend.node.relay.framing import MAX_FRAME
from ai.backend.node.workload.channel import parse

Message = dict[str, Any]
_BATCH_BYTES = 64 * 1024
_encode = msgspec.json.encode


def _frame(message: Mapping[str, Any]) -> bytes:
    body = _encode(message)
    if len(body) > MAX_FRAME:
        raise Unavailable("a frame is too large for the channel")
    return len(body).to_bytes(4, "big") + body


class PodLink(asyncio.Protocol):
    """Sends and receives frames over the connection from the relay of one pod to the agent.

    The relay is the process between the pod's runner and the agent.

    ``on_frame`` gets each message with its size in bytes; ``on_lost`` is called once at the end. Frames with a ``seq``
    are the runner's, the others the relay's own.
    """

    def __init__(self, on_frame: Callable[[Message, int], None], on_lost: Callable[[PodLink], None]) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._is_over = False
        self._may_write = asyncio.Event()
        self._may_write.set()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def send(self, *messages: Mapping[str, Any]) -> None:
        """Sends messages to the relay, and waits until the connection accepts more.

        Small messages are sent as one piece. Raises Unavailable without a connection.
        """
        frames, batch_bytes = [], 0
        for message in messages:
            frames.append(_frame(message))
            batch_bytes += len(frames[-1])
            if batch_bytes > _BATCH_BYTES:
                await self._write(b"".join(frames))
                frames, batch_bytes = [], 0
        if frames:
            await self._write(b"".join(frames))

    async def _write(self, frames: bytes) -> None:
        self._post(frames)
        if not self._may_write.is_set():
            await self._may_write.wait()

    def post(self, *messages: Mapping[str, Any]) -> None:
        """Sends small messages to the relay without waiting. Raises Unavailable without a connection."""
        self._post(b"".join(map(_frame, messages)))

    def _post(self, frames: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            raise Unavailable("the relay of the session is not connected")
        self._transport.write(frames)

    def pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        frame_start = 0
        while len(self._buffer) - frame_start >= 4:
            size = int.from_bytes(self._buffer[frame_start : frame_start + 4], "big")
            if not 1 <= size <= MAX_FRAME:
                self.close()
                self._buffer.clear()
                return
            if len(self._buffer) - frame_start - 4 < size:
                break
            body = bytes(self._buffer[frame_start + 4 : frame_start + 4 + size])
            frame_start += 4 + size
            self._on_frame(parse(body), size)
        if frame_start:
            del self._buffer[:frame_start]

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._may_write.set()
        if not self._is_over:
            self._is_over = True
            self._on_lost(self)
