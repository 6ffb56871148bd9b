"""A two-way stream of frames inside the link, with credit: a slow reader slows its writer and nobody else."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.wire.agent import PtyFrame
from ai.backend.common.wire.link import PtyStream
from ai.backend.infra.rpc.frames import Kind

WINDOW = 64
"""Frames that may be under way in one direction."""
Post = Callable[[Kind, Any], Awaitable[None]]
"""Sends one message of this stream."""


class StreamPort:
    """One end of a stream. A :class:`~ai.backend.common.wire.link.PtyStream`."""

    def __init__(self, post: Post, forget: Callable[[], None]) -> None:
        self._post = post
        self._forget = forget
        self._incoming: deque[PtyFrame] = deque()
        self._news = asyncio.Event()
        self._credit = WINDOW
        self._credited = asyncio.Event()
        self._consumed = 0
        self._ended = False

    def deliver(self, frame: PtyFrame) -> bool:
        """Take a frame from the far side. False: it sent more than it may."""
        if len(self._incoming) > WINDOW:
            return False
        self._incoming.append(frame)
        self._news.set()
        return True

    def grant(self, count: int) -> None:
        self._credit += max(0, min(count, WINDOW))
        self._credited.set()

    def end(self) -> None:
        """The far side, or the link, has ended it. What has arrived can still be read."""
        self._ended = True
        self._news.set()
        self._credited.set()
        self._forget()

    async def send(self, frame: PtyFrame) -> None:
        while self._credit <= 0 and not self._ended:
            self._credited.clear()
            await self._credited.wait()
        if self._ended:
            raise Unavailable("the stream has ended")
        self._credit -= 1
        await self._post(Kind.DATA, frame)

    async def __aiter__(self) -> AsyncIterator[PtyFrame]:
        while True:
            while self._incoming:
                frame = self._incoming.popleft()
                await self._grant_more()
                yield frame
                if frame.kind == "closed":
                    return
            if self._ended:
                return
            self._news.clear()
            await self._news.wait()

    async def _grant_more(self) -> None:
        self._consumed += 1
        if self._consumed >= WINDOW // 2 and not self._ended:
            consumed, self._consumed = self._consumed, 0
            try:
                await self._post(Kind.CREDIT, consumed)
            except BackendError:
                self.end()

    async def close(self) -> None:
        if self._ended:
            return
        self.end()
        try:
            await self._post(Kind.END, None)
        except BackendError:
            pass  # the link is gone, and the stream with it


async def serve_stream(port: StreamPort, stream: PtyStream) -> None:
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
