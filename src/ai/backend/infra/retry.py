"""Computes delays between attempts. Delays grow up to a maximum until an attempt succeeds."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import KW_ONLY, dataclass, field

_SHARED_RNG = random.Random()
"""Used by each Backoff without a generator of its own, because creating a generator takes longer than most attempts."""


@dataclass(eq=False)
class Backoff:
    """Computes exponential delays from ``first_s`` to ``max_s``; a ``first_s`` of zero means no delays.

    ``jitter`` is the largest share of a delay that is left out at random, so that processes that failed together do not
    retry together. ``failures`` counts since the last success.
    """

    first_s: float
    max_s: float
    _: KW_ONLY
    factor: float = 2.0
    jitter: float = 0.0
    rng: random.Random = field(default_factory=lambda: _SHARED_RNG)
    failures: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not (0 <= self.first_s <= self.max_s and self.factor > 1 and 0 <= self.jitter <= 1):
            raise ValueError(f"these are no delays: {self}")
        self._growth_steps = math.ceil(math.log(self.max_s / self.first_s, self.factor)) if self.first_s else 0

    def delay_s(self, failures: int) -> float:
        """Returns the delay in seconds after ``failures`` failures, for a caller that counts the failures itself."""
        exponent = max(0, min(failures, self._growth_steps))
        return min(self.first_s * self.factor**exponent, self.max_s) * (1 - self.jitter * self.rng.random())

    def next_s(self) -> float:
        """Counts a failure and returns the delay until the next attempt."""
        delay_s = self.delay_s(self.failures)
        self.failures += 1
        return delay_s

    async def wait(self) -> None:
        """Counts a failure and sleeps until the next attempt."""
        await asyncio.sleep(self.next_s())

    def reset(self) -> None:
        """Resets the delay after a successful attempt."""
        self.failures = 0
