"""Terminals of one kernel: streams of bytes over the runner's channel."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from ai.backend.agent.channel.channel import Frame, KernelChannel
from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.wire.execution import PtyFrame

log = logging.getLogger(__name__)
_BUFFER_BYTES = 1024 * 1024
"""Output that a slow viewer may be behind; then the oldest is dropped, as a terminal that scrolled on."""


class Terminal:
    """A :class:`~ai.backend.common.wire.link.PtyStream` on one terminal of the runner."""

    def __init__(self, channel: KernelChannel, pty_id: str) -> None:
        self._channel = channel
        self._id = pty_id
        self._frames: deque[PtyFrame] = deque()
        self._size = 0
        self._news = asyncio.Event()
        self._ended = False
        self.on_close: Any = lambda: None

    def push(self, frame: PtyFrame) -> None:
        self._frames.append(frame)
        self._size += len(frame.data)
        while self._size > _BUFFER_BYTES and len(self._frames) > 1:
            self._size -= len(self._frames.popleft().data)
        self._news.set()

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self.push(PtyFrame(kind="closed"))

    async def send(self, frame: PtyFrame) -> None:
        if self._ended:
            raise Unavailable("the terminal is closed")
        message: dict[str, Any] | None = None
        if frame.kind == "stdin":
            message = {"t": "pty-input", "data": base64.b64encode(frame.data).decode()}
        elif frame.kind == "resize":
            message = {"t": "pty-resize", "rows": frame.rows, "cols": frame.cols}
        elif frame.kind == "restart":
            message = {"t": "pty-restart"}
        if message is not None:
            await self._channel.send({**message, "pty": self._id})

    async def __aiter__(self) -> AsyncIterator[PtyFrame]:
        while True:
            while self._frames:
                frame = self._frames.popleft()
                self._size -= len(frame.data)
                yield frame
                if frame.kind == "closed":
                    return
            if self._ended:
                return
            self._news.clear()
            await self._news.wait()

    async def close(self) -> None:
        self.on_close()
        if self._ended:
            return
        self.end()
        try:
            await self._channel.send({"t": "pty-close", "pty": self._id})
        except BackendError:
            pass  # the runner is gone, and its terminals with it


class Terminals:
    """Opens the terminals of one kernel. Those of an earlier life of the agent are closed at their first output."""

    __slots__ = (
        "_channel",
        "_count",
        "_open",
        "_prefix",
        "_strangers",
        "_tasks",
    )

    def __init__(self, channel: KernelChannel, *, prefix: str) -> None:
        self._channel = channel
        self._prefix = prefix
        self._count = 0
        self._open: dict[str, Terminal] = {}
        self._strangers: frozenset[str] = frozenset()
        self._tasks: list[asyncio.Task[None]] = []
        channel.add_sink(self)

    async def open(self, rows: int, cols: int, timeout_s: float) -> Terminal:
        """Opens a terminal. Raises RunError if the runner cannot, or an error of the channel."""
        self._count += 1
        pty_id = f"{self._prefix}-{self._count}"
        terminal = self._open[pty_id] = Terminal(self._channel, pty_id)
        terminal.on_close = lambda: self._open.pop(pty_id, None)
        try:
            await self._channel.request({"t": "pty-open", "pty": pty_id, "rows": rows, "cols": cols}, timeout_s)
        except BaseException:
            self._open.pop(pty_id, None)
            raise
        return terminal

    def __len__(self) -> int:
        return len(self._open)

    def on_frame(self, frame: Frame, seq: int) -> None:
        kind = frame.get("t")
        if kind not in ("pty-output", "pty-closed"):
            return
        pty_id = str(frame.get("pty"))
        terminal = self._open.get(pty_id)
        if terminal is None:
            if kind == "pty-output" and not pty_id.startswith(f"{self._prefix}-") and pty_id not in self._strangers:
                self._strangers |= {pty_id}
                self._spawn(self._send_close(pty_id))
            return
        if kind == "pty-closed":
            terminal.end()
            self._open.pop(pty_id, None)
            return
        try:
            terminal.push(PtyFrame(kind="out", data=base64.b64decode(str(frame.get("data", "")))))
        except binascii.Error:
            log.warning("a runner sent terminal output that is not base64")

    def on_exit(self, frame: Frame | None) -> None:
        self.close()

    def close(self) -> None:
        for terminal in list(self._open.values()):
            terminal.end()
        self._open.clear()

    async def _send_close(self, pty_id: str) -> None:
        try:
            await self._channel.send({"t": "pty-close", "pty": pty_id})
        except BackendError:
            pass  # gone already

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)
