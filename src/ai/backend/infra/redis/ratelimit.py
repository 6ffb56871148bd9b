"""The rolling rate limit of spec 03-07, counted over all managers."""

from __future__ import annotations

import logging
import time

from redis.exceptions import RedisError

from ai.backend.infra.http.ratelimit import STEP_S, STEPS, Allowance, RateLimiter, exceeded
from ai.backend.infra.redis.client import connect

log = logging.getLogger(__name__)
_TAKE = """
local now = redis.call('TIME')
local step = math.floor(tonumber(now[1]) / ARGV[2])
local counts, total = redis.call('HGETALL', KEYS[1]), 0
for i = 1, #counts, 2 do
  if tonumber(counts[i]) <= step - ARGV[3] then redis.call('HDEL', KEYS[1], counts[i])
  else total = total + tonumber(counts[i + 1]) end
end
if total >= tonumber(ARGV[1]) then return -1 end
redis.call('HINCRBY', KEYS[1], step, 1)
redis.call('EXPIRE', KEYS[1], ARGV[2] * (ARGV[3] + 1))
return total + 1
"""


class RedisRateLimiter:
    """Implements :class:`ai.backend.infra.http.ratelimit.Limiter` by the clock of Redis.

    While Redis is away each process counts for itself, so a caller may have as much from each of them.
    """

    def __init__(self, url: str, *, prefix: str = "backendai:rate:", timeout_s: float = 0.5) -> None:
        self._redis = connect(url, timeout_s=timeout_s)
        self._take = self._redis.register_script(_TAKE)
        self._prefix = prefix
        self._alone = RateLimiter()
        self._away_until = 0.0

    async def count(self, key: str, limit: int | None) -> Allowance | None:
        if limit is None or limit < 1:
            return None
        if time.monotonic() < self._away_until:
            return await self._alone.count(key, limit)
        try:
            taken = int(await self._take(keys=[self._prefix + key], args=[limit, STEP_S, STEPS]))
        except (RedisError, OSError) as e:
            log.warning("requests are counted by each process alone: %s", e)
            self._away_until = time.monotonic() + 1.0
            return await self._alone.count(key, limit)
        if taken < 0:
            raise exceeded(limit)
        return Allowance(limit=limit, remaining=limit - taken)

    async def close(self) -> None:
        await self._redis.aclose()
