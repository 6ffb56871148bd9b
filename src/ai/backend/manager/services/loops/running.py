"""What every loop has in common: run, wait for a hint or the slow period, run again."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from ai.backend.infra.bus import Signal

log = logging.getLogger(__name__)


class Loop(ABC):
    """A level-triggered loop.

    ``once`` loads what there is and does what is due; it may be run at any time, also twice, and may fail half-way. A
    hint (``wake``) makes it run sooner; a lost one costs at most ``period_s``.
    """

    period_s: float = 5.0

    def __init__(self) -> None:
        self._signal = Signal()

    def wake(self) -> None:
        self._signal.set()

    @abstractmethod
    async def once(self) -> None: ...

    async def run(self) -> None:
        """Until cancelled."""
        name = type(self).__name__
        while True:
            try:
                await self.once()
            except Exception:  # a loop must outlive any failure: the next round starts from what is stored
                log.exception("%s failed; it runs again", name)
                await asyncio.sleep(min(1.0, self.period_s))
            await self._signal.wait(self.period_s)
