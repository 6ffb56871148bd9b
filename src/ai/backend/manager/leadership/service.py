"""One of several managers runs the loops: the one that holds the lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ai.backend.infra.clock import Clock
from ai.backend.manager.leadership.store import Lease, LeaseStore

log = logging.getLogger(__name__)

LEADER = "leader"
PRESENCE = "manager:"
"""Each manager holds a lease of this name and its own while it lives."""


class Leadership:
    """Takes the lease, keeps it, and tells when it came and went.

    ``begin`` is called with the writes of everything that it starts fenced by the lease. ``end`` is called before the
    lease can be another's by this machine's monotonic clock; should this process be stopped meanwhile, the fence
    refuses what it writes once it goes on.

    Args:
        leases: where leases are.
        holder: this process, never used again by another.
        ttl_s: how long a leader that vanished leaves the loops undone, at most.
    """

    def __init__(
        self,
        leases: LeaseStore,
        clock: Clock,
        *,
        holder: str,
        ttl_s: float,
        begin: Callable[[], Awaitable[None]],
        end: Callable[[], Awaitable[None]],
    ) -> None:
        self._leases = leases
        self._clock = clock
        self.holder = holder
        self._ttl_s = ttl_s
        self._begin = begin
        self._end = end
        self._lease: Lease | None = None
        self._until = 0.0

    @property
    def leads(self) -> bool:
        return self._lease is not None

    async def run(self) -> None:
        """Until cancelled; call :meth:`stop` then."""
        while True:
            try:
                await self._once()
            except TimeoutError:
                log.warning("nobody says in time who has the lease")
            except Exception:  # whatever it is, the lease must be asked for again
                log.exception("the lease could not be taken or kept")
            if self._lease is not None and self._left() <= 0:
                await self._lose("it could not be renewed in time")
            await asyncio.sleep(min(self._ttl_s / 4, self._left()))

    def _left(self) -> float:
        """Seconds that the lease is certainly ours; without one, as long as an answer about it means anything."""
        return self._ttl_s if self._lease is None else max(0.0, self._until - self._clock.monotonic())

    async def stop(self) -> None:
        """End what was begun and let another begin at once."""
        lease = self._lease
        if lease is not None:
            await self._lose("this manager stops")
            await self._leases.release(lease)

    async def living(self) -> set[str]:
        """The holders that live."""
        return set((await self._leases.holders(PRESENCE)).values())

    async def announce(self) -> None:
        """Say that this manager lives."""
        await self._leases.acquire(PRESENCE + self.holder, self.holder, ttl_s=4 * self._ttl_s)

    async def _once(self) -> None:
        asked = self._clock.monotonic()
        async with asyncio.timeout(self._left()):
            await self.announce()
            lease = await self._leases.acquire(LEADER, self.holder, ttl_s=self._ttl_s)
        if lease is None:
            if self._lease is not None:
                await self._lose("another manager has it")
            return
        self._until = asked + 0.8 * self._ttl_s
        if self._lease is not None and self._lease.token != lease.token:
            await self._lose("it ran out, and came back")
        if self._lease is None:
            log.info("this manager leads from now on, by token %d", lease.token)
            self._lease = lease
            with self._leases.fenced(lease):
                await self._begin()

    async def _lose(self, why: str) -> None:
        log.warning("this manager leads no more: %s", why)
        self._lease = None
        await self._end()
