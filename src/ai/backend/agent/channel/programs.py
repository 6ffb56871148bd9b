"""Runs programs that users start beside a kernel's code, as streams over the runner's channel with a window each
way.
"""

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
from ai.backend.common.wire.execution import OpenPty, PtyFrame

log = logging.getLogger(__name__)
WINDOW_BYTES = 256 * 1024
_FRAME_COST_BYTES = 256
"""The part of the window that a frame of output uses besides its bytes."""
_ACKNOWLEDGED_BYTES = 2 * 1024 * 1024
"""The bytes of output after which the shim may drop the frames that it stores for a restart of the agent."""
_MAX_ORPHANS = 64


class Program:
    """Implements a :class:`~ai.backend.common.wire.link.PtyStream` on one program of the runner."""

    def __init__(self, channel: KernelChannel, name: str, on_close: Callable[[], object]) -> None:
        self._channel = channel
        self._name = name
        self._on_close = on_close
        self._frames: deque[PtyFrame] = deque()
        self._changed = asyncio.Event()
        self._untaken_bytes = 0
        self._buffered_bytes = 0
        self._has_ended = False

    def push(self, frame: PtyFrame) -> bool:
        """Queues a frame for the reader. Returns False if more output waits than an honest runner sends."""
        self._buffered_bytes += len(frame.data) + _FRAME_COST_BYTES
        self._frames.append(frame)
        self._changed.set()
        return self._buffered_bytes <= 2 * WINDOW_BYTES

    def end(self, exit_code: int | None = None) -> None:
        """Ends the stream with an exit code, or without one for a program whose exit code is unknown."""
        if not self._has_ended:
            self._has_ended = True
            self.push(PtyFrame(kind="closed", exit_code=exit_code))

    def on_input_consumed(self, count: int) -> None:
        self._untaken_bytes = max(0, self._untaken_bytes - count)
        self._changed.set()

    async def send(self, frame: PtyFrame) -> None:
        """Sends a frame; input waits while the program does not read. Raises Unavailable after the program's end."""
        match frame.kind:
            case "stdin" | "eof":
                await self._feed(frame.data, is_last=frame.kind == "eof")
            case "resize":
                await self._send({"t": "program-resize", "rows": frame.rows, "cols": frame.cols})
            case "signal":
                await self._send({"t": "program-signal", "signal": frame.data.decode(errors="replace")})

    async def _feed(self, data: bytes, *, is_last: bool) -> None:
        for offset in range(0, max(1, len(data)), WINDOW_BYTES // 4):
            chunk = data[offset : offset + WINDOW_BYTES // 4]
            while self._untaken_bytes + len(chunk) > WINDOW_BYTES and not self._has_ended:
                self._changed.clear()
                await self._changed.wait()
            self._untaken_bytes += len(chunk)
            is_last_chunk = is_last and offset + len(chunk) == len(data)
            await self._send({"t": "program-input", "data": base64.b64encode(chunk).decode(), "last": is_last_chunk})

    async def _send(self, message: dict[str, Any]) -> None:
        if self._has_ended:
            raise Unavailable("the program has ended")
        await self._channel.send({**message, "id": self._name})

    async def __aiter__(self) -> AsyncIterator[PtyFrame]:
        while True:
            while not self._frames:
                self._changed.clear()
                await self._changed.wait()
            frame = self._frames.popleft()
            yield frame
            if frame.kind == "closed":
                return
            taken_bytes = len(frame.data) + _FRAME_COST_BYTES
            self._buffered_bytes -= taken_bytes
            with suppress(BackendError):  # its end is delivered next
                await self._channel.send({"t": "program-taken", "id": self._name, "bytes": taken_bytes})

    async def close(self) -> None:
        self._on_close()
        if not self._has_ended:
            self.end()
            await _send_end(self._channel, self._name)


@dataclass(slots=True, eq=False)
class Programs:
    """Starts the programs of one kernel. A program that was started before a restart of the agent is ended at its first
    output.

    ``acknowledge`` lets the shim forget the delivered frames.
    """

    channel: KernelChannel
    prefix: str
    acknowledge: Callable[[], None] = lambda: None
    _count: int = field(default=0, init=False)
    _running: dict[str, Program] = field(default_factory=dict, init=False)
    _orphans: frozenset[str] = field(default=frozenset(), init=False)
    _unacknowledged_bytes: int = field(default=0, init=False)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.channel.add_sink(self)

    async def start(self, request: OpenPty, timeout_s: float) -> Program:
        """Starts a program in the workload. Raises InvalidInput, RunError, or an error of the channel."""
        self._count += 1
        name = f"{self.prefix}-{self._count}"
        program = self._running[name] = Program(self.channel, name, lambda: self._running.pop(name, None))
        frame: dict[str, Any] = {
            "t": "program-start",
            "id": name,
            "argv": request.command,
            "tty": request.tty,
            "env": request.env,
        }
        frame |= {"rows": request.rows, "cols": request.cols, "cwd": request.cwd, "env": request.env}
        try:
            await self.channel.request(frame, timeout_s)
        except BaseException:
            self._running.pop(name, None)
            raise
        return program

    def on_frame(self, frame: Frame, seq: int) -> None:
        message_type = frame.get("t")
        if message_type not in ("program-output", "program-taken", "program-ended"):
            return
        name = str(frame.get("id"))
        program = self._running.get(name)
        if program is None:
            if message_type == "program-output":
                self._end_orphan(name)
        elif message_type == "program-taken":
            program.on_input_consumed(int(frame.get("bytes") or 0))
        elif message_type == "program-ended":
            del self._running[name]
            program.end(int(frame.get("exitCode") or 0))
        else:
            self._deliver(name, program, frame)

    def _deliver(self, name: str, program: Program, frame: Frame) -> None:
        try:
            data = base64.b64decode(str(frame.get("data", "")))
        except binascii.Error:
            log.warning("a runner sent a program's output that is not base64")
            return
        if not program.push(PtyFrame(kind="err" if frame.get("stream") == "stderr" else "out", data=data)):
            log.warning("a runner sent more of a program's output than its window; the program is cut off")
            del self._running[name]
            program.end()
        self._unacknowledged_bytes += len(data)
        if self._unacknowledged_bytes > _ACKNOWLEDGED_BYTES:
            self._unacknowledged_bytes = 0
            self.acknowledge()

    def _end_orphan(self, name: str) -> None:
        """Ends a program that was started before the agent's restart, and of which the runner still sends output.

        The number of such programs is bounded, since a hostile runner may invent names.
        """
        if name.startswith(f"{self.prefix}-") or name in self._orphans or len(self._orphans) >= _MAX_ORPHANS:
            return
        self._orphans |= {name}
        task = asyncio.create_task(_send_end(self.channel, name))
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    def __len__(self) -> int:
        return len(self._running)

    def on_exit(self, frame: Frame | None) -> None:
        self.close()

    def close(self) -> None:
        for program in list(self._running.values()):
            program.end()
        self._running.clear()


async def _send_end(channel: KernelChannel, name: str) -> None:
    with suppress(BackendError):  # the runner has gone with its programs
        await channel.send({"t": "program-end", "id": name})
