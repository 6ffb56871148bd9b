"""The scheduler that the scheduling loop keeps of a resource group."""

from __future__ import annotations

import gc
import random

import pytest

from ai.backend.common.structs import replace
from ai.backend.core.scheduling.decide import decide
from ai.backend.core.scheduling.index.agent_state import NodeClassCache
from ai.backend.core.scheduling.index.agents import AgentIndex, Demand
from ai.backend.core.scheduling.placement.strategies import dispersed
from ai.backend.core.scheduling.policy import Policy, Rng
from ai.backend.core.scheduling.snapshot import HeldKernel, Snapshot
from ai.backend.manager.scheduling.loop import COMPARE_EVERY_PASSES, GroupState
from tests.unit.core.scheduling.builders import NOW, agent, session, slots


def test_a_board_is_kept_while_the_agents_are_the_same_and_drift_is_found(caplog: pytest.LogCaptureFixture) -> None:
    view = agent("i-1", cpu=4, mem="8g")
    first = Snapshot(resource_group="default", agents=(view,), pending=(session("a", slots(cpu=3, mem="1g")),))
    state = GroupState(NodeClassCache())

    def told(snapshot: Snapshot) -> bool:
        """Returns True if the plan equals that of a new scheduler."""
        plan = state.decide(snapshot, Policy(), now=NOW, rng=random.Random(1))
        return plan == decide(snapshot, Policy(), now=NOW, rng=random.Random(1))

    assert told(first)
    scheduler = state.scheduler
    assert scheduler is not None
    kernel = first.pending[0].kernels[0]
    held = HeldKernel(kernel_id=kernel.kernel_id, slots=kernel.slots)
    second = replace(
        first, agents=(replace(view, held=(held,)),), pending=(session("b", slots(cpu=1, mem="1g")), *first.pending)
    )
    assert told(replace(second, pending=second.pending[:1]))
    assert state.scheduler is scheduler
    assert told(first), "what a plan placed and nobody committed waits on"
    assert state.scheduler is scheduler
    state.passes = COMPARE_EVERY_PASSES - 1
    assert told(first)
    assert not caplog.records
    assert state.scheduler is not scheduler, "it is made anew now and then"
    drifted = state.scheduler
    assert drifted is not None
    drifted.index.agents[0].adopt(
        HeldKernel(kernel_id=second.pending[0].kernels[0].kernel_id, slots=slots(cpu=1, mem="1g"))
    )
    drifted.index.agents[0].held.clear()
    drifted.index.agents[0]._reported.clear()
    state.passes = COMPARE_EVERY_PASSES - 1
    assert told(first)
    assert "has drifted" in caplog.text
    assert told(replace(first, agents=(replace(view, generation=7),)))


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_rests_during_a_decision_and_is_then_as_it_was(is_enabled: bool) -> None:
    during: list[bool] = []

    def choose(index: AgentIndex, demand: Demand, scope: int, rng: Rng) -> int:
        during.append(gc.isenabled())
        return dispersed(index, demand, scope, rng)

    waiting = session("a", slots(cpu=3, mem="1g"))
    snapshot = Snapshot(resource_group="default", agents=(agent("i-1", cpu=4, mem="8g"),), pending=(waiting,))
    was_enabled = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        GroupState(NodeClassCache()).decide(snapshot, Policy(plugged=choose), now=NOW, rng=random.Random(1))
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
    assert during
    assert not any(during)
