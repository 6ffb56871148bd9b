"""Observations on their way to the manager."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import pytest

from ai.backend.agent.kernels.files import FileOutbox
from ai.backend.agent.kernels.observer import ObservationQueue
from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.common.wire.reports import KernelObservation, ObservationReport
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


class CountingManager(FakeManager):
    def __init__(self) -> None:
        super().__init__()
        self.reports: list[list[KernelStatus]] = []

    async def observe(self, report: ObservationReport) -> int:
        self.reports.append([observation.status for observation in report.observations])
        return await super().observe(report)


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


class RefusingOutbox(FullOutbox):
    """Refuses to remove what was delivered while ``is_full``."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = True
        self.cleared = asyncio.Event()

    def replace(self, observations: list[KernelObservation]) -> None:
        if self.is_full:
            raise OSError("No space left on device")
        self.kept = list(observations)
        self.cleared.set()


async def test_delivered_observations_leave_the_outbox_once_the_disk_has_space_again() -> None:
    manager, outbox = FakeManager(), RefusingOutbox()
    observer = ObservationQueue(outbox, manager, agent_id="i-test", epoch=1)
    delivery = asyncio.create_task(observer.deliver())
    observer.report("k", 1, KernelStatus.TERMINATED, KernelEventReason.UNKNOWN)
    await manager.wait_for(lambda o: o.status is KernelStatus.TERMINATED)
    outbox.is_full = False
    await asyncio.wait_for(outbox.cleared.wait(), 10.0)
    assert outbox.kept == []
    delivery.cancel()


async def test_passing_statuses_share_the_report_of_the_next_lasting_one() -> None:
    manager = CountingManager()
    observer = ObservationQueue(FullOutbox(), manager, agent_id="i-test", epoch=1)
    delivery = asyncio.create_task(observer.deliver())
    statuses = [KernelStatus.PREPARING, KernelStatus.CREATING, KernelStatus.RUNNING]
    for status in statuses:
        observer.report("k", 1, status, KernelEventReason.UNKNOWN)
        await asyncio.sleep(0)
    await manager.wait_for(lambda o: o.status is KernelStatus.RUNNING)
    assert manager.reports == [statuses]
    observer.report("k", 1, KernelStatus.TERMINATING, KernelEventReason.UNKNOWN)
    await manager.wait_for(lambda o: o.status is KernelStatus.TERMINATING)
    delivery.cancel()


def test_an_observation_that_is_cut_short_by_a_full_disk_takes_no_other_with_it(tmp_path: Path) -> None:
    def observation(seq: int) -> KernelObservation:
        return KernelObservation(
            kernel_id=f"k{seq}",
            attempt=1,
            status=KernelStatus.TERMINATED,
            reason=KernelEventReason.UNKNOWN,
            seq=seq,
            at=1.0,
        )

    outbox = FileOutbox(tmp_path / "outbox.jsonl")
    outbox.append(observation(1))
    size_bytes = (tmp_path / "outbox.jsonl").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes + 10, hard))  # as a disk with ten bytes left
    try:
        with pytest.raises(OSError, match="No space left"):
            outbox.append(observation(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    outbox.append(observation(3))
    assert [stored.kernel_id for stored in FileOutbox(tmp_path / "outbox.jsonl").load()] == ["k1", "k3"]


def test_an_observation_cut_within_a_character_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "outbox"
    outbox = FileOutbox(path)
    queue = ObservationQueue(outbox, FakeManager(), agent_id="i-test", epoch=1)
    queue.report("k", 1, KernelStatus.ERROR, KernelEventReason.UNKNOWN, message="장치")
    whole_line = path.read_bytes()
    path.write_bytes(whole_line[: whole_line.index("치".encode()) + 1])
    for _ in range(2):
        queue.report("k", 2, KernelStatus.TERMINATED, KernelEventReason.UNKNOWN)
    outbox.close()
    assert [observation.attempt for observation in FileOutbox(path).load()] == [2]
