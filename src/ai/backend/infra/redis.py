"""Shares notifications and rate limits between processes through Redis or Valkey. No data there is durable."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any
from uuid import uuid4

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.bus import Bus
from ai.backend.infra.http.ratelimit import STEP_COUNT, STEP_S, Allowance, RateLimiter, rate_limit_error
from ai.backend.infra.retry import Backoff

try:
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError, ResponseError
except ModuleNotFoundError:
    raise InvalidInput("a shared bus needs redis: pip install 'backendai[redis]'") from None

log = logging.getLogger(__name__)
_MAX_MESSAGES = 10_000
_BLOCK_MS = 1000
_GATHER_PAUSE_S = 0.005
_RETRY_S, _RETRY_MAX_S, _RETRY_JITTER = 0.2, 5.0, 0.5
_ABANDONED_MS = 3_600_000
_COUNT_SCRIPT = """
local now = redis.call('TIME')
local step = math.floor(tonumber(now[1]) / ARGV[2])
local counts, total, oldest = redis.call('HGETALL', KEYS[1]), 0, step
for i = 1, #counts, 2 do
  if tonumber(counts[i]) <= step - ARGV[3] then redis.call('HDEL', KEYS[1], counts[i])
  else
    total = total + tonumber(counts[i + 1])
    oldest = math.min(oldest, tonumber(counts[i]))
  end
end
if total >= tonumber(ARGV[1]) then return tonumber(now[1]) - (oldest + ARGV[3]) * ARGV[2] end
redis.call('HINCRBY', KEYS[1], step, 1)
redis.call('EXPIRE', KEYS[1], ARGV[2] * (ARGV[3] + 1))
return total + 1
"""


def connect(url: str, *, timeout_s: float = 2.0) -> Redis:
    """Returns a client that connects on first use. Raises InvalidInput if the URL is malformed.

    The URL is ``redis://[[user]:password@]host:port[/number]``, ``rediss://`` with TLS, or ``unix://``.
    """
    try:
        return Redis.from_url(
            url,
            protocol=2,
            socket_connect_timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_keepalive=True,
            # One retry, for an idle connection that was cut. By default it waits up to a minute without a log line.
            retry=Retry(NoBackoff(), 1),
        )
    except ValueError as e:
        raise InvalidInput(f"no Redis is named by this URL: {e}", data={"redis": "malformed"}) from None


class RedisBus(Bus):
    """Publishes notifications to this process like :class:`Bus`, and through Redis to other processes.

    Other processes receive the topic, and None as payload.
    A payload may be stale when it arrives in another process, so receivers read the store instead. While Redis is
    unavailable notifications stay in this process; once it is back every topic is published, for whatever was missed.
    The carrier is a stream with the key ``stream``, one for each installation, and a consumer group for each process.
    """

    def __init__(self, url: str, *, stream: str = "backendai:hints") -> None:
        super().__init__()
        self._stream = stream
        self._own_id = str(uuid4())
        self._writer = connect(url)
        self._reader = connect(url, timeout_s=_BLOCK_MS / 1000 + 2)
        self._pending: set[str] = set()
        self._has_pending = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts to receive and to send. Redis may become available later."""
        self._tasks = [asyncio.create_task(self._receive_forever()), asyncio.create_task(self._send_forever())]

    async def stop(self) -> None:
        """Sends pending messages if sending is quick, and disconnects. Safe without ``start`` and twice."""
        running_tasks: set[asyncio.Task[None]] = set(self._tasks)
        while running_tasks:  # repeatedly: the client loses a cancellation that meets a reply
            for task in running_tasks:
                task.cancel()
            _, running_tasks = await asyncio.wait(running_tasks, timeout=0.1)
        self._tasks = []
        try:
            async with asyncio.timeout(1):
                await self._send()
                await self._writer.xgroup_destroy(self._stream, self._own_id)
        except (RedisError, OSError, TimeoutError) as e:
            log.info("pending notifications were not sent: %s", e)
        await self._writer.aclose()
        await self._reader.aclose()

    def publish(self, topic: str, payload: Any = None) -> None:
        super().publish(topic, payload)
        self._pending.add(topic)
        self._has_pending.set()

    async def _send_forever(self) -> None:
        backoff = Backoff(_RETRY_S, _RETRY_MAX_S, jitter=_RETRY_JITTER)
        while True:
            await self._has_pending.wait()
            await asyncio.sleep(_GATHER_PAUSE_S)  # a burst is one message
            try:
                await self._send()
                backoff.reset()
            except (RedisError, OSError) as e:
                log.warning("notifications do not reach other processes: %s", e)
                await backoff.wait()

    async def _send(self) -> None:
        topics, self._pending = self._pending, set()
        self._has_pending.clear()
        if not topics:
            return
        message = {"from": self._own_id, "topics": "\n".join(sorted(topics))}
        try:
            await self._writer.xadd(self._stream, message, maxlen=_MAX_MESSAGES, approximate=True)  # type: ignore[arg-type]  # texts are such values
        except (RedisError, OSError):
            self._pending |= topics
            self._has_pending.set()
            raise

    async def _receive_forever(self) -> None:
        backoff = Backoff(_RETRY_S, _RETRY_MAX_S, jitter=_RETRY_JITTER)
        while True:
            try:
                await self._join_stream()
                backoff.reset()
                for topic in list(self._subscriptions):
                    super().publish(topic)
                while True:
                    await self._receive()
            except (RedisError, OSError) as e:
                log.warning("notifications of other processes are not received: %s", e)
            await backoff.wait()

    async def _join_stream(self) -> None:
        """Creates this process's consumer group, which begins with the next message, and removes groups of dead
        processes."""
        try:
            await self._reader.xgroup_create(self._stream, self._own_id, id="$", mkstream=True)
        except ResponseError as e:
            if "BUSYGROUP" not in str(e):
                raise
        for group in await self._reader.xinfo_groups(self._stream):
            group_name = _to_text(group["name"])
            consumers = await self._reader.xinfo_consumers(self._stream, group_name)
            if consumers and all(consumer["idle"] > _ABANDONED_MS for consumer in consumers):
                await self._reader.xgroup_destroy(self._stream, group_name)

    async def _receive(self) -> None:
        first_id_of_stream = {self._stream: ">"}
        reply: Any = await self._reader.xreadgroup(
            self._own_id,
            "one",
            first_id_of_stream,  # type: ignore[arg-type]  # of one key
            count=100,
            block=_BLOCK_MS,
            noack=True,
        )
        for _, messages in reply or ():
            for _, message_fields in messages:
                message = {_to_text(name): _to_text(value) for name, value in message_fields.items()}
                if message.get("from") != self._own_id:
                    for topic in message.get("topics", "").split("\n"):
                        super().publish(topic)


def _to_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class RedisRateLimiter:
    """Counts requests by key in Redis, so that all managers together enforce one rate limit.

    The clock is that of Redis. Implements :class:`~ai.backend.infra.http.ratelimit.Limiter`.
    While Redis is unavailable each process counts its own requests, so a caller has the limit in each of them.
    """

    def __init__(self, url: str, *, prefix: str = "backendai:rate:", timeout_s: float = 0.5) -> None:
        self._redis = connect(url, timeout_s=timeout_s)
        self._take = self._redis.register_script(_COUNT_SCRIPT)
        self._prefix = prefix
        self._fallback = RateLimiter()
        self._away_until = 0.0

    async def count(self, key: str, limit: int | None) -> Allowance | None:
        if limit is None or limit < 1:
            return None
        if time.monotonic() < self._away_until:
            return await self._fallback.count(key, limit)
        try:
            taken_count = int(await self._take(keys=[self._prefix + key], args=[limit, STEP_S, STEP_COUNT]))
        except (RedisError, OSError) as e:
            log.warning("requests are counted by each process alone: %s", e)
            self._away_until = time.monotonic() + 1.0
            return await self._fallback.count(key, limit)
        if taken_count < 0:  # the seconds until the oldest request leaves the window
            raise rate_limit_error(limit, -taken_count)
        return Allowance(limit=limit, remaining=limit - taken_count)

    async def close(self) -> None:
        await self._redis.aclose()
