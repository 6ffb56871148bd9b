"""The channel of a container: its relay's socket while it lives, and the messages that the relay left at its end."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ai.backend.common.errors import Unavailable
from ai.backend.node.relay.framing import FrameReader, ProtocolViolation
from ai.backend.node.workload.channel import RelayChannel, RelayConnection, parse
from ai.backend.plugin.runtime import RunnerChannel, WorkloadExit

Ended = Callable[[], Awaitable[WorkloadExit | None]]
"""Returns how the workload has ended, None while it lives. Waits if it is about to end."""
LEFT_SLACK = 1 << 20


class DockerChannel(RunnerChannel):
    """A :class:`RunnerChannel` of a container. Without ``live`` it only reads the messages that were left."""

    def __init__(
        self, live: RelayChannel | None, folder: Path, ended: Ended, *, last_seq: int, left_limit: int
    ) -> None:
        self._live = live
        self._folder = folder
        self._ended = ended
        self._seen = last_seq
        self._left_limit = left_limit
        self._closed = False

    async def send(self, frame: Mapping[str, Any]) -> None:
        if self._live is None:
            raise Unavailable("the workload has ended")
        await self._live.send(frame)

    async def recv(self) -> AsyncIterator[dict[str, Any]]:
        if self._live is not None:
            async for message in self._live.recv():
                if isinstance(seq := message.get("seq"), int):
                    self._seen = max(self._seen, seq)
                yield message
        ended = None if self._closed else await self._ended()
        if ended is None:
            return
        for message in read_left(self._folder / "left", self._left_limit + LEFT_SLACK):
            if isinstance(seq := message.get("seq"), int) and seq > self._seen:
                self._seen = seq
                yield message
        yield {"t": "exited", "code": ended.code, "signal": ended.signal, "oom": ended.oom, "reason": ended.reason}

    async def ack(self, seq: int) -> None:
        if self._live is not None:
            await self._live.ack(seq)

    async def close(self) -> None:
        self._closed = True
        if self._live is not None:
            await self._live.close()


async def is_listening(folder: Path) -> bool:
    """Returns True if the relay of a container still accepts connections."""
    try:
        connection = await RelayConnection.open(folder)
    except Unavailable:
        return False
    await connection.close()
    return True


def read_left(path: Path, limit: int) -> list[dict[str, Any]]:
    """Reads the messages that a relay left. A hostile container may have written anything there."""
    content = read_untrusted(path, limit) or b""
    with suppress(ProtocolViolation):  # then nothing of it is believed
        return [message for body in FrameReader().feed(content) if (message := parse(body)) is not None]
    return []


def read_untrusted(path: Path, limit: int) -> bytes | None:
    """Reads the beginning of a regular file that an untrusted program wrote; None for anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        return file.read(limit) if stat.S_ISREG(os.fstat(fd).st_mode) else None
