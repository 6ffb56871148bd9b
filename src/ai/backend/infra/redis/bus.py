"""Notifications to all processes: a Redis stream, read by a consumer group for each."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import uuid4

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from ai.backend.infra.bus import Bus
from ai.backend.infra.redis.client import connect
from ai.backend.infra.retry import Backoff

log = logging.getLogger(__name__)
_LENGTH = 10_000
_BLOCK_MS = 1000
_GATHER_S = 0.005
_RETRY_S, _RETRY_MAX_S, _RETRY_JITTER = 0.2, 5.0, 0.5
_ABANDONED_MS = 3_600_000


class RedisBus(Bus):
    """Publishes like :class:`Bus` in this process; other processes get the topic, and None as payload.

    A payload is a copy of what the writer knows, and a copy that travelled may be stale: whoever hears of a topic from
    afar looks into the store. While Redis is away hints go no further than this process, and when it is back every
    topic is told once, for whatever was missed.

    Args:
        url: see :func:`ai.backend.infra.redis.client.connect`.
        stream: the key of the stream; one for each installation.
    """

    def __init__(self, url: str, *, stream: str = "backendai:hints") -> None:
        super().__init__()
        self._stream = stream
        self._me = f"{uuid4()}"
        self._writer: Redis = connect(url)
        self._reader: Redis = connect(url, timeout_s=_BLOCK_MS / 1000 + 2)
        self._owed: set[str] = set()
        self._owes = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts to receive and to send; Redis may become available later."""
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._tell())]

    async def stop(self) -> None:
        """Sends what is pending, if that is quick, and disconnects. Safe without ``start`` and twice."""
        left: set[asyncio.Task[None]] = set(self._tasks)
        while left:  # again and again: a cancellation that meets an answer is lost in the client
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=0.1)
        self._tasks = []
        try:
            async with asyncio.timeout(1):
                await self._send()
                await self._writer.xgroup_destroy(self._stream, self._me)
        except (RedisError, OSError, TimeoutError) as e:
            log.info("the bus was left without a word: %s", e)
        await self._writer.aclose()
        await self._reader.aclose()

    def publish(self, topic: str, payload: Any = None) -> None:
        super().publish(topic, payload)
        self._owed.add(topic)
        self._owes.set()

    # ---- telling ----

    async def _tell(self) -> None:
        backoff = Backoff(_RETRY_S, _RETRY_MAX_S, jitter=_RETRY_JITTER)
        while True:
            await self._owes.wait()
            await asyncio.sleep(_GATHER_S)  # a burst is one message
            try:
                await self._send()
                backoff.reset()
            except (RedisError, OSError) as e:
                log.warning("hints do not reach other processes: %s", e)
                await backoff.wait()

    async def _send(self) -> None:
        topics, self._owed = self._owed, set()
        self._owes.clear()
        if not topics:
            return
        message = {"from": self._me, "topics": "\n".join(sorted(topics))}
        try:
            await self._writer.xadd(self._stream, message, maxlen=_LENGTH, approximate=True)  # type: ignore[arg-type]  # texts are such values
        except (RedisError, OSError):
            self._owed |= topics
            self._owes.set()
            raise

    # ---- listening ----

    async def _listen(self) -> None:
        backoff = Backoff(_RETRY_S, _RETRY_MAX_S, jitter=_RETRY_JITTER)
        while True:
            try:
                await self._join()
                backoff.reset()
                self._tell_all()
                while True:
                    await self._hear()
            except (RedisError, OSError) as e:
                log.warning("hints of other processes are not heard: %s", e)
            await backoff.wait()

    async def _join(self) -> None:
        """Creates this process's group, which begins with the next message, and removes those of dead processes."""
        try:
            await self._reader.xgroup_create(self._stream, self._me, id="$", mkstream=True)
        except ResponseError as e:
            if "BUSYGROUP" not in str(e):
                raise
        for group in await self._reader.xinfo_groups(self._stream):
            name = _text(group["name"])
            members = await self._reader.xinfo_consumers(self._stream, name)
            if members and all(member["idle"] > _ABANDONED_MS for member in members):
                await self._reader.xgroup_destroy(self._stream, name)

    async def _hear(self) -> None:
        streams = {self._stream: ">"}
        heard: Any = await self._reader.xreadgroup(self._me, "one", streams, count=100, block=_BLOCK_MS, noack=True)  # type: ignore[arg-type]  # of one key
        for _, messages in heard or ():
            for _, fields in messages:
                said = {_text(name): _text(value) for name, value in fields.items()}
                if said.get("from") != self._me:
                    for topic in said.get("topics", "").split("\n"):
                        super().publish(topic)

    def _tell_all(self) -> None:
        for topic in list(self._subscriptions):
            super().publish(topic)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
