"""Elects a leader among several managers by a lease, so that only the leader runs the loops."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ai.backend.infra.clock import Clock
from ai.backend.manager.leadership.store import Lease, LeaseStore

log = logging.getLogger(__name__)

LEADER_LEASE = "leader"
PRESENCE_PREFIX = "manager:"
"""The prefix of the name of the lease that each manager holds while it is alive."""


@dataclass(eq=False, repr=False)
class Leadership:
    """Acquires and renews the lease; calls ``begin`` when the lease is acquired and ``end`` when it is lost.

    The writes of all that ``begin`` starts are fenced by the lease. ``end`` is called before the lease can expire by
    this machine's monotonic clock; if the process is suspended meanwhile, the fence refuses its later writes.
    ``holder`` is a unique id of this process, ``ttl_s`` the maximum time without a leader after one has crashed.
    """

    leases: LeaseStore
    clock: Clock
    holder: str = field(kw_only=True)
    ttl_s: float = field(kw_only=True)
    begin: Callable[[], Awaitable[None]] = field(kw_only=True)
    end: Callable[[], Awaitable[None]] = field(kw_only=True)
    _lease: Lease | None = field(default=None, init=False)
    _until: float = field(default=0.0, init=False)
    _announced_at: float = field(default=-math.inf, init=False)

    @property
    def leads(self) -> bool:
        return self._lease is not None

    async def run(self) -> None:
        """Waits for the lease and renews it until cancelled; the caller must then call :meth:`stop`."""
        while True:
            try:
                await self._once()
            except TimeoutError:
                log.warning("the store of leases does not answer in time")
            except Exception:  # the lease must be requested again after any failure
                log.exception("could not acquire or renew the lease")
            if self._lease is not None and self._remaining_s() <= 0:
                await self._end_leadership("it could not be renewed in time")
            await asyncio.sleep(min(self.ttl_s / (4 if self.leads else 8), self._remaining_s()))

    def _remaining_s(self) -> float:
        """Returns the seconds for which this manager certainly still holds the lease.

        Without a lease, returns the whole duration of a lease.
        """
        return self.ttl_s if self._lease is None else max(0.0, self._until - self.clock.monotonic())

    async def stop(self) -> None:
        """Ends the loops and releases the lease, so that another manager can begin at once."""
        lease = self._lease
        if lease is not None:
            await self._end_leadership("this manager stops")
            await self.leases.release(lease)

    async def living_managers(self) -> set[str]:
        """Returns the ids of the managers that are alive."""
        return set((await self.leases.holders(PRESENCE_PREFIX)).values())

    async def announce(self) -> None:
        """Renews the lease that shows that this manager is alive."""
        await self.leases.acquire(PRESENCE_PREFIX + self.holder, self.holder, ttl_s=4 * self.ttl_s)

    async def _once(self) -> None:
        requested_at = self.clock.monotonic()
        async with asyncio.timeout(self._remaining_s()):
            if requested_at >= self._announced_at + self.ttl_s:
                await self.announce()
                self._announced_at = requested_at
            lease = await self.leases.acquire(LEADER_LEASE, self.holder, ttl_s=self.ttl_s)
        if lease is None:
            if self._lease is not None:
                await self._end_leadership("another manager has it")
            return
        self._until = requested_at + 0.8 * self.ttl_s
        if self._lease is not None and self._lease.token != lease.token:
            await self._end_leadership("it expired and was acquired again")
        if self._lease is None:
            log.info("this manager becomes the leader with token %d", lease.token)
            self._lease = lease
            with self.leases.fenced(lease):
                await self.begin()

    async def _end_leadership(self, reason: str) -> None:
        log.warning("this manager is no longer the leader: %s", reason)
        self._lease = None
        await self.end()
