"""A leader whose renewals hang. The leases themselves are tested with the stores."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from ai.backend.infra.clock import SystemClock
from ai.backend.manager.leadership.service import LEADER_LEASE, Leadership
from ai.backend.manager.leadership.store import Lease

TTL_S = 0.05


class _Leases:
    """Grants the lease once and then blocks until ``answers`` is set."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()

    async def acquire(self, name: str, holder: str, *, ttl_s: float) -> Lease | None:
        await self.answers.wait()
        if name == LEADER_LEASE:
            self.answers.clear()
        return Lease(name=name, holder=holder, token=1)

    async def release(self, lease: Lease) -> None:
        raise AssertionError("it is lost before anybody stops")

    async def holders(self, prefix: str) -> dict[str, str]:
        return {}

    @contextmanager
    def fenced(self, lease: Lease) -> Iterator[None]:
        yield


async def test_a_renewal_that_hangs_does_not_outlive_the_lease() -> None:
    clock, leases = SystemClock(), _Leases()
    calls: list[tuple[str, float]] = []
    ended = asyncio.Event()

    async def begin() -> None:
        calls.append(("begin", clock.monotonic()))

    async def end() -> None:
        calls.append(("end", clock.monotonic()))
        ended.set()

    leadership = Leadership(leases, clock, holder="me", ttl_s=TTL_S, begin=begin, end=end)
    running = asyncio.create_task(leadership.run())
    async with asyncio.timeout(30):
        await ended.wait()
        assert not leadership.leads
        ended.clear()
        leases.answers.set()  # the next acquisition succeeds
        await ended.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert [name for name, _ in calls] == ["begin", "end", "begin", "end"]
