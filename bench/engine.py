"""An engine of language models in simulated time: prefix cache, prefill rate, decode slots, and faults.

One prompt is computed after the other, without the blocks that the cache holds; then each request that has a slot makes
tokens at its own rate. Nothing is random, so that the same requests give the same figures anywhere.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count


class Clock:
    """Simulated time, in seconds. What is due at once runs in the order in which it was planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Plans a call."""
        heapq.heappush(self._due, (self.now + max(0.0, delay_s), next(self._numbers), call))

    def run(self) -> None:
        """Runs until nothing is planned."""
        while self._due:
            self.now, _, call = heapq.heappop(self._due)
            call()


class Mode(StrEnum):
    """``hang``: takes requests and never answers. ``trickle``: makes a hundredth of the tokens."""

    OK = "ok"
    HANG = "hang"
    TRICKLE = "trickle"


@dataclass(slots=True)
class Job:
    """A request at an engine. The callbacks come at its first token and after its last one."""

    blocks: Sequence[bytes]
    tokens: int
    output: int
    on_first: Callable[[], None]
    on_end: Callable[[], None]
    is_cancelled: bool = False
    hit: int = 0


@dataclass(slots=True)
class Engine:
    """``prefill_rate``: tokens a second of all prompts; ``decode_rate``: of each answer; ``cache_blocks``: that are
    kept, those used longest ago go first; ``block_tokens``: of one block."""

    clock: Clock
    prefill_rate: float = 8000.0
    decode_rate: float = 40.0
    slots: int = 64
    cache_blocks: int = 512
    block_tokens: int = 128
    mode: Mode = Mode.OK
    prefilled: int = 0
    cached: int = 0
    _waiting: deque[Job] = field(default_factory=deque)
    _running: int = 0
    _is_prefilling: bool = False
    _cache: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    def submit(self, job: Job) -> None:
        """Takes a request."""
        if self.mode is not Mode.HANG:
            self._waiting.append(job)
            self._next()

    def _next(self) -> None:
        while self._waiting and self._waiting[0].is_cancelled:
            self._waiting.popleft()
        if self._is_prefilling or not self._waiting or self._running >= self.slots:
            return
        job = self._waiting.popleft()
        self._running += 1
        self._is_prefilling = True
        job.hit = self._take_prefix(job.blocks)
        uncached = max(1, job.tokens - job.hit * self.block_tokens)
        self.prefilled += uncached
        self.cached += job.tokens - uncached
        self.clock.after(uncached / self.prefill_rate, lambda: self._begin(job))

    def _take_prefix(self, blocks: Sequence[bytes]) -> int:
        """Returns how many blocks of the beginning are cached, and caches all of them."""
        hit = 0
        while hit < len(blocks) and blocks[hit] in self._cache:
            hit += 1
        for block in blocks:
            self._cache[block] = None
            self._cache.move_to_end(block)
        while len(self._cache) > self.cache_blocks:
            self._cache.popitem(last=False)
        return hit

    def _begin(self, job: Job) -> None:
        self._is_prefilling = False
        if not job.is_cancelled:
            job.on_first()
        rate = self.decode_rate / (100.0 if self.mode is Mode.TRICKLE else 1.0)
        self.clock.after(0.0 if job.is_cancelled else job.output / rate, lambda: self._finish(job))
        self._next()

    def _finish(self, job: Job) -> None:
        self._running -= 1
        if not job.is_cancelled:
            job.on_end()
        self._next()
