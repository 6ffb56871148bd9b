"""Opens terminals of one kernel, as streams of bytes over the runner's channel."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ai.backend.agent.channel.channel import Frame, KernelChannel
from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.wire.execution import PtyFrame

log = logging.getLogger(__name__)
_MAX_ORPHANS = 64
_FRAME_OVERHEAD_BYTES = 256
_MAX_BUFFER_BYTES = 1024 * 1024
"""The bytes of output that are stored for a slow viewer. Beyond that the oldest output is dropped, as a terminal
scrolls.
"""


class Terminal:
    """Implements a :class:`~ai.backend.common.wire.link.PtyStream` on one terminal of the runner."""

    def __init__(self, channel: KernelChannel, pty_id: str, on_close: Callable[[], object]) -> None:
        self._channel = channel
        self._id = pty_id
        self._on_close = on_close
        self._frames: deque[PtyFrame] = deque()
        self._size = 0
        self._changed = asyncio.Event()
        self._ended = False

    def push(self, frame: PtyFrame) -> None:
        self._frames.append(frame)
        self._size += len(frame.data) + _FRAME_OVERHEAD_BYTES
        while self._size > _MAX_BUFFER_BYTES and len(self._frames) > 1:
            self._size -= len(self._frames.popleft().data) + _FRAME_OVERHEAD_BYTES
        self._changed.set()

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self.push(PtyFrame(kind="closed"))

    async def send(self, frame: PtyFrame) -> None:
        if self._ended:
            raise Unavailable("the terminal is closed")
        message: dict[str, Any]
        match frame.kind:
            case "stdin":
                message = {"t": "pty-input", "data": base64.b64encode(frame.data).decode()}
            case "resize":
                message = {"t": "pty-resize", "rows": frame.rows, "cols": frame.cols}
            case "restart":
                message = {"t": "pty-restart"}
            case _:
                return
        await self._channel.send({**message, "pty": self._id})

    async def __aiter__(self) -> AsyncIterator[PtyFrame]:
        while self._frames or not self._ended:
            if not self._frames:
                self._changed.clear()
                await self._changed.wait()
                continue
            frame = self._frames.popleft()
            self._size -= len(frame.data) + _FRAME_OVERHEAD_BYTES
            yield frame
            if frame.kind == "closed":
                return

    async def close(self) -> None:
        self._on_close()
        if self._ended:
            return
        self.end()
        await _send_close(self._channel, self._id)


@dataclass(slots=True, eq=False)
class Terminals:
    """Opens the terminals of one kernel. Terminals from before an agent restart are closed at their first output."""

    channel: KernelChannel
    prefix: str
    _opened_count: int = field(default=0, init=False)
    _open: dict[str, Terminal] = field(default_factory=dict, init=False)
    _orphans: set[str] = field(default_factory=set, init=False)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.channel.add_sink(self)

    async def open(self, rows: int, cols: int, timeout_s: float) -> Terminal:
        """Opens a terminal in the workload. Raises RunError if the runner cannot, or an error of the channel."""
        self._opened_count += 1
        pty_id = f"{self.prefix}-{self._opened_count}"
        terminal = self._open[pty_id] = Terminal(self.channel, pty_id, lambda: self._open.pop(pty_id, None))
        try:
            await self.channel.request({"t": "pty-open", "pty": pty_id, "rows": rows, "cols": cols}, timeout_s)
        except BaseException:
            self._open.pop(pty_id, None)
            raise
        return terminal

    def __len__(self) -> int:
        return len(self._open)

    def on_frame(self, frame: Frame, seq: int) -> None:
        message_type = frame.get("t")
        if message_type not in ("pty-output", "pty-closed"):
            return
        pty_id = str(frame.get("pty"))
        terminal = self._open.get(pty_id) if message_type == "pty-output" else self._open.pop(pty_id, None)
        if terminal is None:
            if (
                message_type == "pty-output"
                and not pty_id.startswith(f"{self.prefix}-")
                and pty_id not in self._orphans
                and len(self._orphans) < _MAX_ORPHANS  # an honest runner has no more
            ):
                self._orphans.add(pty_id)
                task = asyncio.create_task(_send_close(self.channel, pty_id))
                self._tasks.append(task)
                task.add_done_callback(self._tasks.remove)
            return
        if message_type == "pty-closed":
            terminal.end()
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


async def _send_close(channel: KernelChannel, pty_id: str) -> None:
    with suppress(BackendError):  # the runner has gone with its terminals
        await channel.send({"t": "pty-close", "pty": pty_id})
