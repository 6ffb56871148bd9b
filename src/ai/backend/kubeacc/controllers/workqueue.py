"""Implements a queue of keys. A key is queued once, and only one worker at a time works on it."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from ai.backend.common.errors import BackendError, Conflict
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.retry import Backoff

log = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)
Reconcile = Callable[[K], Awaitable[float | None]]
"""Brings one object nearer to what it should be; returns after how many seconds it is to be asked again, if ever."""
_FIRST_S, _MAX_S = 0.05, 60.0


class WorkQueue(Generic[K]):
    """Calls ``reconcile`` for every key that was added since the key's last call began.

    A key that is added while it is worked on is worked on again afterwards. A call that raises is repeated after a
    growing delay; a Conflict, which only says that the object has changed meanwhile, after a short one.
    """

    def __init__(self, name: str, reconcile: Reconcile[K], *, workers: int = 8) -> None:
        self._name = name
        self._reconcile = reconcile
        self._worker_count = workers
        self._ready: OrderedDict[K, None] = OrderedDict()
        self._active: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._delays: dict[K, Backoff] = {}
        self._wakeup = asyncio.Event()

    def add(self, key: K) -> None:
        """Queues a key for work at once."""
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()
        if key in self._active:
            self._again.add(key)
            return
        self._ready.setdefault(key)
        self._wakeup.set()

    def add_after(self, key: K, delay_s: float) -> None:
        """Queues a key for work after a delay, or sooner if the key is added meanwhile."""
        if key in self._ready or key in self._again:
            return
        loop = asyncio.get_running_loop()
        due_at = loop.time() + max(0.0, delay_s)
        if (timer := self._timers.get(key)) is not None:
            if timer.when() <= due_at:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(due_at, self._on_timer, key)

    def _on_timer(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    @property
    def is_idle(self) -> bool:
        """Returns True if no key is due now. Delayed keys do not count."""
        return not self._ready and not self._active

    async def run(self) -> None:
        """Works until cancelled."""
        workers = [asyncio.ensure_future(self._work()) for _ in range(self._worker_count)]
        try:
            await asyncio.gather(*workers)
        finally:
            await cancel_all(*workers)
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()

    async def _work(self) -> None:
        while True:
            while not self._ready:
                self._wakeup.clear()
                await self._wakeup.wait()
            key, _ = self._ready.popitem(last=False)
            self._active.add(key)
            retry_delay_s: float | None = None
            try:
                retry_delay_s = await self._reconcile(key)
                self._delays.pop(key, None)
            except Exception as e:
                retry_delay_s = self._delays.setdefault(key, Backoff(_FIRST_S, _MAX_S)).next_s()
                log_level = logging.DEBUG if isinstance(e, Conflict) else logging.WARNING
                is_unexpected = not isinstance(e, BackendError)
                log.log(
                    log_level,
                    "%s: %s is tried again in %.2f s: %s",
                    self._name,
                    key,
                    retry_delay_s,
                    e,
                    exc_info=is_unexpected,
                )
            finally:
                self._active.discard(key)
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)
                elif retry_delay_s is not None:
                    self.add_after(key, retry_delay_s)
