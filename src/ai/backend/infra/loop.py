"""Repeats rounds of work until cancelled, and runs groups of tasks that end together."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from functools import cached_property
from typing import Any

from ai.backend.common.errors import BackendError
from ai.backend.infra.bus import Signal

log = logging.getLogger(__name__)

_PAUSE_S = 1.0
"""The seconds after a failed round for which ``wake`` has no effect."""
_RETRY_S = 60.0
"""The longest time from a failed round to the next one, however long the period is."""


class PeriodicLoop(ABC):
    """Repeats a round after each period, or sooner after ``wake``.

    ``once`` reads the present state and does what is due: it may run at any time, also twice, and may fail half-way.
    A lost ``wake`` costs at most one period. No failure of a round ends the loop; after one the next round comes within
    a minute, since a day's work that failed need not wait for the next day.
    """

    period_s: float = 5.0
    failures: int = 0
    """The number of rounds that have failed."""
    succeeded_at: float = 0.0
    """When the last round succeeded, in seconds of the epoch; before that when the loop began, and 0 before then."""

    @cached_property
    def _signal(self) -> Signal:
        return Signal()

    @property
    def name(self) -> str:
        return type(self).__name__

    def wake(self) -> None:
        """Starts the next round at once, or after the present one."""
        self._signal.set()

    @abstractmethod
    async def once(self) -> None:
        """Runs one round of work."""

    async def run(self) -> None:
        """Repeats ``once`` until cancelled."""
        self.succeeded_at = time.time()
        while True:
            try:
                await self.once()  # which may change the period
                self.succeeded_at = time.time()
                wait_s = self.period_s
            except Exception as e:  # the next round starts from what is stored
                self.failures += 1
                pause_s = min(_PAUSE_S, self.period_s)
                wait_s = min(_RETRY_S, self.period_s) - pause_s
                log.warning("%s failed and runs again: %s", self.name, e, exc_info=not isinstance(e, BackendError))
                await asyncio.sleep(pause_s)
            await self._signal.wait(wait_s)


class PeriodicCall(PeriodicLoop):
    """Calls a function in each round of the loop."""

    def __init__(self, name: str, period_s: float, function: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self.period_s = period_s
        self._name = name
        self._function = function

    @property
    def name(self) -> str:
        return self._name

    async def once(self) -> None:
        await self._function()


async def cancel_all(*futures: asyncio.Future[Any]) -> None:
    """Cancels tasks and waits for their end. Their results and exceptions are dropped."""
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)


async def all_or_none(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Runs coroutines at the same time until all have ended. If one fails, the others are cancelled.

    Waits for the end of the cancelled ones, and raises the exception of the failed one, and no group of exceptions as a
    TaskGroup does.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        await cancel_all(*tasks)
        raise
