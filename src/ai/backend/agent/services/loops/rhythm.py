"""How a loop repeats."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ai.backend.common.errors import BackendError

log = logging.getLogger(__name__)


class Rhythm:
    """Calls something again and again: after its interval, or sooner when poked; an error never ends it."""

    def __init__(self, name: str, interval_s: float, once: Callable[[], Awaitable[None]]) -> None:
        self.name = name
        self.interval_s = interval_s
        self._once = once
        self._poked = asyncio.Event()

    def poke(self) -> None:
        self._poked.set()

    async def run(self) -> None:
        while True:
            self._poked.clear()
            try:
                await self._once()
            except BackendError as e:
                log.warning("%s: %s", self.name, e)
            except Exception:
                log.exception("the loop %s failed once and goes on", self.name)
            try:
                async with asyncio.timeout(self.interval_s):
                    await self._poked.wait()
            except TimeoutError:
                continue
