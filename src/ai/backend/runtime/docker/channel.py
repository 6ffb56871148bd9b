"""Connects the agent with the runner of a container through its relay's socket.

After the container's end reads the messages that the relay left on disk.
"""

from __future__ import annotations

import asyncio
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

ExitReader = Callable[[], Awaitable[WorkloadExit | None]]
"""Returns how the workload has ended, or None while the workload lives. Waits if the workload is about to end."""
LEFT_SLACK_BYTES = 1 << 20
_ANSWER_TIMEOUT_S = 2.0


class DockerChannel(RunnerChannel):
    """Implements :class:`RunnerChannel` for a container, by a connection to the container's relay.

    Without ``relay_channel`` it only reads the messages left on disk.
    """

    def __init__(
        self,
        relay_channel: RelayChannel | None,
        channel_folder: Path,
        read_exit: ExitReader,
        *,
        last_seq: int,
        left_messages_limit_bytes: int,
    ) -> None:
        self._relay_channel = relay_channel
        self._folder = channel_folder
        self._read_exit = read_exit
        self._last_seq_seen = last_seq
        self._left_messages_limit_bytes = left_messages_limit_bytes
        self._closed = False

    async def send(self, frame: Mapping[str, Any]) -> None:
        if self._relay_channel is None:
            raise Unavailable("the workload has ended")
        await self._relay_channel.send(frame)

    async def recv(self) -> AsyncIterator[dict[str, Any]]:
        if self._relay_channel is not None:
            async for message in self._relay_channel.recv():
                if isinstance(sequence_number := message.get("seq"), int):
                    self._last_seq_seen = max(self._last_seq_seen, sequence_number)
                yield message
        workload_exit = None if self._closed else await self._read_exit()
        if workload_exit is None:
            return
        for message in read_left_messages(self._folder / "left", self._left_messages_limit_bytes + LEFT_SLACK_BYTES):
            if isinstance(sequence_number := message.get("seq"), int) and sequence_number > self._last_seq_seen:
                self._last_seq_seen = sequence_number
                yield message
        yield {
            "t": "exited",
            "code": workload_exit.code,
            "signal": workload_exit.signal,
            "oom": workload_exit.oom,
            "reason": workload_exit.reason,
        }

    async def ack(self, seq: int) -> None:
        if self._relay_channel is not None:
            await self._relay_channel.ack(seq)

    async def close(self) -> None:
        self._closed = True
        if self._relay_channel is not None:
            await self._relay_channel.close()


async def is_relaying(channel_folder: Path) -> bool:
    """Returns True if the relay of a container still answers.

    That its socket accepts connections does not tell: gVisor's does so for a while after the relay has ended.
    """
    try:
        connection = await RelayConnection.open(channel_folder)
    except Unavailable:
        return False
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            await connection.send({"t": "watch"})
            return await connection.receive() is not None
    except (TimeoutError, Unavailable):
        return False
    finally:
        connection.abandon()


def read_left_messages(left_path: Path, limit_bytes: int) -> list[dict[str, Any]]:
    """Reads the messages that a relay left on disk; returns none if a hostile container wrote invalid frames."""
    content = read_untrusted(left_path, limit_bytes) or b""
    with suppress(ProtocolViolation):  # then nothing of it is believed
        return [parse(frame_body) for frame_body in FrameReader().feed(content)]
    return []


def read_untrusted(path: Path, limit_bytes: int) -> bytes | None:
    """Reads the beginning of a regular file that an untrusted program wrote; None for anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        return file.read(limit_bytes) if stat.S_ISREG(os.fstat(fd).st_mode) else None
