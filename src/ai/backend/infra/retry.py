"""Delays between attempts: each is longer than the one before, up to a maximum, until an attempt succeeds."""

from __future__ import annotations

import asyncio
import math
import random


class Backoff:
    """Computes exponential delays.

    Args:
        first_s: the delay after the first failure; with zero there are no delays.
        max_s: no delay is longer.
        factor: by which the delay grows with each failure.
        jitter: the largest share of a delay that is left out at random, from 0 to 1. Processes that failed together
            then do not try again together.
        rng: the source of the jitter.
    """

    def __init__(
        self,
        first_s: float,
        max_s: float,
        *,
        factor: float = 2.0,
        jitter: float = 0.0,
        rng: random.Random | None = None,
    ) -> None:
        if not (0 <= first_s <= max_s and factor > 1 and 0 <= jitter <= 1):
            raise ValueError(f"these are no delays: {first_s} to {max_s} s, factor {factor}, jitter {jitter}")
        self._first_s = first_s
        self._max_s = max_s
        self._factor = factor
        self._growth_steps = math.ceil(math.log(max_s / first_s, factor)) if first_s else 0
        self._jitter = jitter
        self._rng = rng or random.Random()
        self._failures = 0

    @property
    def failures(self) -> int:
        """The number of failed attempts since the last success."""
        return self._failures

    def delay_s(self, failures: int) -> float:
        """Returns the delay after that many failures, for a caller that stores the number itself."""
        exponent = max(0, min(failures, self._growth_steps))
        return min(self._first_s * self._factor**exponent, self._max_s) * (1 - self._jitter * self._rng.random())

    def next_s(self) -> float:
        """Counts a failure and returns the delay until the next attempt."""
        delay_s = self.delay_s(self._failures)
        self._failures += 1
        return delay_s

    async def wait(self) -> None:
        """Counts a failure and sleeps until the next attempt."""
        await asyncio.sleep(self.next_s())

    def reset(self) -> None:
        """Resets the delay after a successful attempt."""
        self._failures = 0
