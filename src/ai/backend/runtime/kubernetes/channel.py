"""Connects the agent with the runner of a pod through the pod's relay."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from ai.backend.common.errors import Conflict, Unavailable
from ai.backend.node.workload.channel import CONNECT_TIMEOUT_S, PROTOCOL
from ai.backend.plugin.runtime import RunnerChannel, WorkloadExit
from ai.backend.runtime.kubernetes.links import Message, PodLink

ReadExit = Callable[[], Awaitable[WorkloadExit | None]]
"""Returns how the workload has ended, or None while the workload lives. Waits if the workload is about to end."""
MAX_UNREAD_BYTES = 1 << 20


class PodChannel(RunnerChannel):
    """Implements :class:`RunnerChannel` for a pod, by the link to the pod's relay.

    A channel without a ``link`` only reports the end of the workload.
    """

    def __init__(self, link: PodLink | None, read_exit: ReadExit) -> None:
        self._link = link
        self._read_exit = read_exit
        self._unread: deque[tuple[Message, int]] = deque()
        self._unread_bytes = 0
        self._is_paused = False
        self._news = asyncio.Event()
        self._attached: asyncio.Future[Message] | None = None
        self._last_seen = 0
        self._final_seq: int | None = None
        self._is_over = link is None
        self._is_closed = False

    async def attach(self, *, epoch: int, last_seq: int) -> None:
        """Takes over the stream of frames from the runner for this agent.

        Raises Unavailable, or Conflict if a newer epoch has taken it over.
        """
        assert self._link is not None
        self._last_seen = last_seq
        self._attached = asyncio.get_running_loop().create_future()
        try:
            await self._link.send({"t": "attach", "protocol": PROTOCOL, "epoch": epoch, "last_seq": last_seq})
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                relay_answer = await self._attached
        except (Unavailable, TimeoutError):
            raise Unavailable("the relay of the session does not answer") from None
        if relay_answer.get("t") != "attached":
            raise Conflict("a newer agent drives this workload")

    # ---- what the link calls

    def receive(self, message: Message, size: int) -> None:
        """Takes a frame of the runner, or the relay's answer to :meth:`attach`."""
        if self._attached is not None and not self._attached.done():
            if "seq" not in message and message.get("t") in ("attached", "refused"):
                self._attached.set_result(message)
            return  # what was under way to an earlier channel comes again
        sequence_number = message.get("seq")
        if not isinstance(sequence_number, int) or self._is_over:
            return
        self._last_seen = max(self._last_seen, sequence_number)
        self._add_unread(message, size)
        self._check_end()

    def _add_unread(self, message: Message, size: int) -> None:
        self._unread.append((message, size))
        self._news.set()
        self._unread_bytes += size
        if self._unread_bytes > MAX_UNREAD_BYTES and self._link is not None:
            self._is_paused = True
            self._link.pause()

    def on_ended(self, last_seq: int) -> None:
        """Handles the relay's message that the runner has ended after the message ``last_seq``.

        The channel ends once that message has been received.
        """
        self._final_seq = last_seq
        self._check_end()

    def cut(self) -> None:
        """Ends the channel because its link is lost or another channel has taken over."""
        if self._attached is not None and not self._attached.done():
            self._attached.set_result({"t": "refused"})
        self._resume_link()
        self._finish()

    def _check_end(self) -> None:
        if self._final_seq is not None and self._last_seen >= self._final_seq:
            self._finish()

    def _finish(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._news.set()

    # ---- what the agent calls

    async def send(self, frame: Mapping[str, Any]) -> None:
        if self._link is None or self._is_over or self._is_closed:
            raise Unavailable("the channel to the workload is closed")
        await self._link.send(frame)

    async def recv(self) -> AsyncIterator[dict[str, Any]]:
        while not self._is_closed:
            while self._unread:
                message, size = self._unread.popleft()
                self._unread_bytes -= size
                if self._is_paused and self._unread_bytes <= MAX_UNREAD_BYTES // 2:
                    self._resume_link()
                yield message
            if self._is_over:
                break
            self._news.clear()
            await self._news.wait()
        workload_exit = None if self._is_closed else await self._read_exit()
        if workload_exit is not None:
            yield {
                "t": "exited",
                "code": workload_exit.code,
                "signal": workload_exit.signal,
                "oom": workload_exit.oom,
                "reason": workload_exit.reason,
            }

    async def ack(self, seq: int) -> None:
        if self._link is not None and not self._is_closed and self._link.is_open:
            await self._link.send({"t": "ack", "seq": seq})

    async def close(self) -> None:
        self._is_closed = True
        self._resume_link()
        self._news.set()

    def _resume_link(self) -> None:
        if self._is_paused and self._link is not None:
            self._is_paused = False
            self._link.resume()
