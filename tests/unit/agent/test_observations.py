"""Observations on their way to the manager."""

from __future__ import annotations

import asyncio

from ai.backend.agent.kernels.observer import ObservationQueue
from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.common.wire.reports import KernelObservation
from tests.support.agent_fakes import FakeManager


class FullOutbox:
    """Takes no more than is appended: what was delivered cannot be removed from it."""

    def __init__(self) -> None:
        self.kept: list[KernelObservation] = []

    def load(self) -> list[KernelObservation]:
        return self.kept

    def append(self, observation: KernelObservation) -> None:
        self.kept.append(observation)

    def replace(self, observations: list[KernelObservation]) -> None:
        raise OSError("No space left on device")

    def rewrite(self, observations: list[KernelObservation]) -> None:
        self.kept = observations

    def close(self) -> None: ...


async def test_a_full_disk_does_not_end_the_delivery() -> None:
    manager = FakeManager()
    observer = ObservationQueue(FullOutbox(), manager, agent_id="i-test", epoch=1)
    delivery = asyncio.create_task(observer.deliver())
    for attempt in (1, 2):
        observer.report("k", attempt, KernelStatus.TERMINATED, KernelEventReason.UNKNOWN)
        await manager.wait_for(lambda o, attempt=attempt: o.attempt == attempt)
    assert not delivery.done()
    delivery.cancel()
    assert len(observer.undelivered_ends()) <= 1
