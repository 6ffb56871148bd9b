"""Heartbeats that lack kernels, of the living process of an agent and of earlier ones."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from ai.backend.common.states import KernelStatus, SessionStatus
from ai.backend.common.structs import replace
from ai.backend.infra.bus import Bus
from ai.backend.manager.agents.settings import AgentSettings
from ai.backend.manager.sessions.changes import ObservationAck
from ai.backend.manager.sessions.lifecycle.reconcile import KernelReconciler
from ai.backend.manager.sessions.memory import Memory, MemorySessionStore
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.writer import SessionWriter
from tests.contract.store.builders import AGENT, NOW, SLOTS, make_agent, make_session

TIMEOUT_S = 15.0
EPOCH = 5


class SteppedClock:
    def __init__(self) -> None:
        self.passed_s = 3600.0

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.passed_s)

    def monotonic(self) -> float:
        return self.passed_s


class Room:
    """A session that runs on an agent, as observed in its fifth epoch, and the comparison of heartbeats with it."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        made = make_session()
        self.session = replace(
            made,
            status=SessionStatus.RUNNING,
            kernels=(replace(made.main, status=KernelStatus.RUNNING, agent=AGENT, occupied_slots=SLOTS, attempt=1),),
        )
        self.memory = Memory(
            sessions={self.session.id: self.session},
            agents={AGENT: make_agent(occupied_slots=SLOTS)},
            acks={AGENT: ObservationAck(agent_id=AGENT, epoch=EPOCH, seq=3)},
        )
        store = MemorySessionStore(self.memory)
        writer = SessionWriter(store, Bus(), on_end=lambda _: None)
        settings = AgentSettings(heartbeat_timeout_s=TIMEOUT_S, presence_grace_s=10.0)
        self.reconciler = KernelReconciler(store, writer, self.clock, settings)

    async def hear(self, epoch: int, *, after_s: float = 3.0, observed: int | None = 3) -> SessionStatus:
        """Compares a heartbeat without kernels; returns the status of the session then."""
        self.clock.passed_s += after_s
        await self.reconciler.compare(AGENT, [], epoch, observed)
        return self.stored.status

    @property
    def stored(self) -> Session:
        return self.memory.sessions[self.session.id]


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.mark.parametrize("epoch", [EPOCH, EPOCH + 1])
async def test_a_kernel_that_two_heartbeats_lack_is_lost(room: Room, epoch: int) -> None:
    assert await room.hear(epoch) == "RUNNING"
    assert await room.hear(epoch) == "ERROR"


async def test_a_kernel_is_not_lost_by_heartbeats_that_are_older_than_its_start(room: Room) -> None:
    for _ in range(9):
        assert await room.hear(EPOCH, observed=2) == "RUNNING"


async def test_a_kernel_is_not_lost_by_late_heartbeats_of_an_earlier_epoch(room: Room) -> None:
    for _ in range(4):
        assert await room.hear(EPOCH - 1) == "RUNNING"
    room.reconciler.forget()  # another manager leads
    for _ in range(4):
        assert await room.hear(EPOCH - 1, observed=None) == "RUNNING"


async def test_an_earlier_epoch_counts_once_no_other_is_heard_for_the_timeout(room: Room) -> None:
    """The agent has lost its data, and its epochs begin anew."""
    assert await room.hear(1, observed=0) == "RUNNING"
    assert await room.hear(1, observed=0, after_s=TIMEOUT_S) == "RUNNING"
    assert await room.hear(1, observed=0) == "RUNNING", "the first that counts"
    assert await room.hear(1, observed=0) == "ERROR"


async def test_a_heartbeat_of_the_living_process_begins_the_timeout_of_earlier_ones_anew(room: Room) -> None:
    await room.hear(1)
    await room.hear(EPOCH, observed=2, after_s=TIMEOUT_S)
    for _ in range(4):
        assert await room.hear(1) == "RUNNING"


async def test_an_agent_without_its_data_that_starts_again_has_a_timeout_of_its_own(room: Room) -> None:
    await room.hear(1)
    for _ in range(2):
        assert await room.hear(2, after_s=TIMEOUT_S) == "RUNNING"
    for _ in range(3):
        assert await room.hear(1) == "RUNNING", "of a dead process again"
    await room.hear(2)
    assert await room.hear(2) == "ERROR"
