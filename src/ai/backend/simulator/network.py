"""Simulated time and a network that loses, repeats and reorders."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ai.backend.common.errors import Unavailable

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Probabilities, each for one event of its kind; but ``skew``: how many seconds wall clocks may be wrong by.

    ``slow``: a transaction of the database takes seconds, or nobody hears how it ends.
    """

    lose: float = 0.1
    repeat: float = 0.1
    crash: float = 0.02
    misbehave: float = 0.1
    slow: float = 0.15
    skew: float = 45.0


NO_FAULTS = Faults(lose=0.0, repeat=0.0, crash=0.0, misbehave=0.0, slow=0.0, skew=0.0)


class World:
    """A clock, dice and what is to happen. ``faults`` may be replaced while it runs."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.rng = random.Random(seed)
        self.faults = faults
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0

    def after(self, delay: float, call: Callable[[], object]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, call))

    def step(self) -> None:
        """Let the next thing happen."""
        self.now, _, call = heapq.heappop(self._events)
        call()

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def rpc(self, call: Callable[[], R]) -> R:
        """A call to another process: it, or its answer, may be lost, and it may arrive once more much later.

        Raises:
            Unavailable: nobody knows whether it was done.
        """
        if self.chance(self.faults.lose):
            raise Unavailable("the request was lost")
        result = call()
        if self.chance(self.faults.repeat):
            self.after(self.rng.uniform(0.0, 20.0), lambda: _quietly(call))
        if self.chance(self.faults.lose):
            raise Unavailable("the answer was lost")
        return result


def _quietly(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:  # noqa: BLE001  # the answer of a repeated request goes nowhere
        return
