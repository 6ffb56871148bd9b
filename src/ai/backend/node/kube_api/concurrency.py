"""Limits the concurrent requests by the load that the API server accepts: additive increase, multiplicative
decrease.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_DECREASE_FACTOR = 0.7
_DECREASE_PAUSE_S = 1.0
"""The seconds after a decrease of the limit in which refusals do not decrease it again."""


class ConcurrencyLimit:
    """Admits at most ``limit`` requests at a time, in the order in which they asked.

    The limit grows by one for each ``limit`` requests that succeed while it is used up, and shrinks when the server
    refuses one for its load or answers slowly.
    """

    def __init__(self, *, initial: int = 32, minimum: int = 2, maximum: int = 128) -> None:
        self._limit = float(initial)
        self._minimum, self._maximum = float(minimum), float(maximum)
        self._active = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._decreased_at = float("-inf")

    @property
    def limit(self) -> int:
        return int(self._limit)

    @property
    def active(self) -> int:
        return self._active

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Waits until a request may start, and counts the request as active during the block."""
        await self._acquire()
        try:
            yield
        finally:
            self._active -= 1
            self._admit()

    async def _acquire(self) -> None:
        if self._active < self.limit and not self._waiting:
            self._active += 1
            return
        admission: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(admission)
        try:
            await admission
        except asyncio.CancelledError:
            if admission.done() and not admission.cancelled():  # admitted at the same moment
                self._active -= 1
                self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting and self._active < self.limit:
            admission = self._waiting.popleft()
            if not admission.done():
                self._active += 1
                admission.set_result(None)

    def record_success(self) -> None:
        """Records an answer that came in good time, which may raise the limit."""
        if self._active >= self.limit - 1:
            self._limit = min(self._limit + 1 / self._limit, self._maximum)
            self._admit()

    def record_overload(self) -> None:
        """Records a refusal for overload or a late answer, which lowers the limit."""
        now = asyncio.get_running_loop().time()
        if now - self._decreased_at >= _DECREASE_PAUSE_S:
            self._decreased_at = now
            self._limit = max(self._minimum, self._limit * _DECREASE_FACTOR)
