"""Which agents have changed, as subscribers are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, cast

from ai.backend.common.ids import AgentId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus
from ai.backend.infra.bus import Bus
from ai.backend.infra.clock import SystemClock
from ai.backend.manager.agents.memory import MemoryAgentStore
from ai.backend.manager.agents.model import AgentState
from ai.backend.manager.events.agent_changes import MAX_KEPT_CHANGES, AgentChange, AgentChanges
from ai.backend.manager.topics import AGENTS
from tests.unit.manager.scheduling.memory_manager import make_agent

ONE, TWO = AgentId("agent-1"), AgentId("agent-2")


class CountingStore(MemoryAgentStore):
    """Counts how often all agents are read."""

    reads = 0

    async def states(self) -> Mapping[AgentId, AgentState]:
        self.reads += 1
        return await super().states()


class Watched:
    """Two agents and what is told of them."""

    def __init__(self) -> None:
        self.bus = Bus()
        self.store = CountingStore({ONE: make_agent(ONE), TWO: make_agent(TWO)})
        self.changes = AgentChanges(self.store, self.bus, SystemClock(), read_interval_s=0.0)

    async def change(self, agent_id: AgentId, **values: Any) -> None:
        await self.store.change(agent_id, **values)
        self.bus.publish(AGENTS)

    def subscribe(self, after: str | None = None) -> aclosing[Any]:
        return aclosing(cast("Any", self.changes.subscribe(after)))


async def next_of(subscription: AsyncIterator[AgentChange]) -> AgentChange:
    async with asyncio.timeout(2.0):
        return await anext(subscription)


async def test_a_subscriber_reads_everything_once_and_is_then_told_what_changes() -> None:
    watched = Watched()
    async with watched.subscribe() as told:
        first = await next_of(told)
        assert first.agent_id is None, "whoever begins reads all agents, as they may have changed before"
        await watched.change(TWO, status=AgentStatus.LOST)
        lost = await next_of(told)
        assert (lost.agent_id, lost.status, lost.aspects) == (TWO, "LOST", ("status",))
        await watched.change(ONE, schedulable=False, occupied_slots=ResourceSlot.parse({"cpu": "3"}))
        withheld = await next_of(told)
        assert (withheld.agent_id, withheld.schedulable) == (ONE, False)
        assert withheld.aspects == ("schedulable", "occupied-slots")


async def test_new_agents_and_their_reports_are_told_and_heartbeats_are_not() -> None:
    watched = Watched()
    async with watched.subscribe() as told:
        await next_of(told)
        await watched.change(ONE, last_heartbeat=make_agent(ONE).first_contact)
        await watched.store.put_agent(make_agent("agent-3"))
        await watched.store.put_agent(make_agent(TWO))
        watched.bus.publish(AGENTS)
        changes = {change.agent_id: change.aspects for change in [await next_of(told), await next_of(told)]}
        assert changes[TWO] == ("report",)
        assert "status" in changes[AgentId("agent-3")]
        assert ONE not in changes


async def test_whoever_comes_back_misses_nothing() -> None:
    watched = Watched()
    async with watched.subscribe() as told:
        seen = await next_of(told)
    await watched.change(ONE, schedulable=False)
    async with watched.subscribe() as other:
        assert (await next_of(other)).agent_id is None
    async with watched.subscribe(after=seen.position) as again:
        missed = await next_of(again)
        assert (missed.agent_id, missed.aspects) == (ONE, ("schedulable",))
        resumed_at = missed.position
    async with watched.subscribe(after=resumed_at) as again:
        await watched.change(TWO, schedulable=False)
        assert (await next_of(again)).agent_id == TWO


async def test_positions_that_lead_nowhere_make_the_client_read_everything() -> None:
    watched = Watched()
    async with watched.subscribe() as told:
        run_id = (await next_of(told)).position.partition("-")[0]
    for position in ("", "nonsense", "41", f"{run_id}-7", "0123abcd-0", f"{run_id}-", f"{run_id}-9" + "9" * 40):
        async with watched.subscribe(after=position) as told:
            assert (await next_of(told)).agent_id is None, position


async def test_what_is_kept_is_bounded() -> None:
    watched = Watched()
    async with watched.subscribe() as slow:
        begun = await next_of(slow)
        for n in range(MAX_KEPT_CHANGES + 10):
            await watched.store.put_agent(make_agent(f"new-{n}"))
        watched.bus.publish(AGENTS)
        assert (await next_of(slow)).agent_id is None, "the oldest of so many changes is gone"
        await watched.change(ONE, schedulable=False)
        assert (await next_of(slow)).agent_id == ONE
    async with watched.subscribe(after=begun.position) as told:
        assert (await next_of(told)).agent_id is None


async def test_many_subscribers_cost_one_reading() -> None:
    watched = Watched()
    subscriptions = [watched.changes.subscribe(None) for _ in range(20)]
    for subscription in subscriptions:
        await next_of(subscription)
    before = watched.store.reads
    waiting = [asyncio.ensure_future(next_of(subscription)) for subscription in subscriptions]
    await asyncio.sleep(0)
    await watched.change(ONE, schedulable=False)
    assert {change.agent_id for change in await asyncio.gather(*waiting)} == {ONE}
    assert watched.store.reads - before <= 2
    for subscription in subscriptions:
        await cast("Any", subscription).aclose()
