"""Limits the requests within the last 15 minutes, as a rolling window (spec 03-07).

A window is kept as 30 counters of 30 seconds, so the count is exact to one such step and costs the same however many
requests there are.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Protocol

from ai.backend.common.errors import RateLimitExceeded

WINDOW_S = 900
STEP_COUNT = 30
STEP_S = WINDOW_S // STEP_COUNT


@dataclass(slots=True)
class _Window:
    """Holds the counters of one key. ``step`` is the number of the newest counter."""

    step: int
    total: int = 0
    counts: list[int] = field(default_factory=lambda: [0] * STEP_COUNT)

    def advance(self, step: int) -> None:
        """Moves the window to the given step, and drops the counts that have left the window.

        If the clock goes back, the newest step is used.
        """
        for offset in range(min(step - self.step, STEP_COUNT)):
            counter_index = (self.step + 1 + offset) % STEP_COUNT
            self.total -= self.counts[counter_index]
            self.counts[counter_index] = 0
        self.step = max(self.step, step)

    def steps_until_free(self) -> int:
        """Returns after how many steps the oldest counted request leaves the window, at most ``STEP_COUNT``."""
        return next(
            (steps for steps in range(1, STEP_COUNT) if self.counts[(self.step + steps) % STEP_COUNT]), STEP_COUNT
        )


@dataclass(slots=True)
class Allowance:
    """Describes the remaining requests of a caller, as the ``X-RateLimit-*`` headers state them."""

    limit: int
    remaining: int

    def headers(self) -> dict[str, str]:
        return {
            "X-RateLimit-Limit": str(self.limit),
            "X-RateLimit-Remaining": str(self.remaining),
            "X-RateLimit-Window": str(WINDOW_S),
        }


def rate_limit_error(limit: int, wait_s: int) -> RateLimitExceeded:
    """Returns the error of a refused request; after ``wait_s`` seconds the caller may send some again."""
    return RateLimitExceeded(
        f"More than {limit} requests in {WINDOW_S // 60} minutes; the next one is taken in {wait_s} s.",
        data={"limit": limit, "window_s": WINDOW_S, "retry_after": wait_s},
    )


class Limiter(Protocol):
    """Counts requests by key, in this process or over several."""

    async def count(self, key: str, limit: int | None) -> Allowance | None:
        """Counts one request now, unless ``limit`` is None or less than one. Raises RateLimitExceeded without counting
        it."""


class RateLimiter:
    """Counts requests by access key, or by the address of an anonymous caller, in at most ``max_keys`` windows."""

    def __init__(self, *, max_keys: int = 65_536) -> None:
        self._windows: OrderedDict[str, _Window] = OrderedDict()
        self._max_keys = max_keys

    async def count(self, key: str, limit: int | None) -> Allowance | None:
        return self.take(key, limit, now=time.monotonic())

    def take(self, key: str, limit: int | None, *, now: float) -> Allowance | None:
        """Counts one request at ``now``, in seconds of a monotonic clock; see :meth:`Limiter.count`."""
        if limit is None or limit < 1:
            return None
        step = int(now) // STEP_S
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window(step)
            if len(self._windows) > self._max_keys:
                self._windows.popitem(last=False)
        else:
            self._windows.move_to_end(key)
            if step > window.step:
                window.advance(step)
        if window.total >= limit:
            raise rate_limit_error(limit, window.steps_until_free() * STEP_S - int(now) % STEP_S)
        window.total += 1
        window.counts[window.step % STEP_COUNT] += 1
        return Allowance(limit=limit, remaining=limit - window.total)
