"""Kernels of one session are put close together, or apart, where agents say in which places they are."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from ai.backend.common.ids import AgentId
from ai.backend.common.structs import replace
from ai.backend.core.scheduling.decide import IncrementalScheduler, decide
from ai.backend.core.scheduling.plan import SkipReason
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import AgentView, PendingSession, Snapshot
from tests.unit.core.scheduling.builders import NOW, agent, holding, session, slots


def racks(**agents: Mapping[str, int]) -> tuple[AgentView, ...]:
    """``a1={"i-1": 4}``: in zone a, rack 1, an agent i-1 that has 4 of 8 cores free."""
    made = []
    for place, those in agents.items():
        for name, free in those.items():
            view = agent(name, cpu=8, mem="64g", location=(place[0], place))
            made.append(holding(view, cpu=8 - free) if free < 8 else view)
    return tuple(made)


def gang(name: str, kernels: int, cpu: int = 4) -> PendingSession:
    return session(name, *[slots(cpu=cpu, mem="1g")] * kernels, multi=True)


def places(agents: tuple[AgentView, ...], *pending: PendingSession, placement: str = "topology") -> list[list[str]]:
    """The racks of the kernels of each session that was placed."""
    snapshot = Snapshot(resource_group="default", agents=agents, pending=pending)
    made = decide(snapshot, Policy(placement=placement), now=NOW, rng=random.Random(1))
    of = {view.agent_id: (view.location or ("nowhere",))[-1] for view in agents}
    return [sorted(of[k.agent_id] for k in p.kernels) for p in made.placements]


def test_a_gang_takes_one_rack_although_fuller_agents_are_elsewhere() -> None:
    agents = racks(a1={"i-1": 4}, a2={"i-2": 4}, b1={"i-3": 8, "i-4": 8})
    assert places(agents, gang("g", 3)) == [["b1"] * 3]
    assert places(agents, gang("g", 3), placement="concentrated") != [["b1"] * 3], "it is the topology that does it"


def test_the_rack_with_the_fewest_agents_that_fit_is_taken() -> None:
    agents = racks(a1={"i-1": 8, "i-2": 8, "i-3": 8}, a2={"i-4": 8, "i-5": 8})
    assert places(agents, gang("g", 2, cpu=8)) == [["a2", "a2"]]


def test_else_one_zone_and_there_the_fewest_racks() -> None:
    agents = racks(a1={"i-1": 8}, a2={"i-2": 8}, b1={"i-3": 8}, b2={"i-4": 8, "i-5": 8}, b3={"i-6": 8})
    assert places(agents, gang("g", 3, cpu=8)) == [["b1", "b2", "b2"]]


def test_else_anywhere_and_the_fewest_racks() -> None:
    agents = racks(a1={"i-1": 8}, b1={"i-3": 8}, c1={"i-4": 8, "i-5": 8})
    assert places(agents, gang("g", 4, cpu=8)) == [["a1", "b1", "c1", "c1"]]


def test_agents_that_name_no_place_are_used_when_they_must_be() -> None:
    agents = (*racks(a1={"i-1": 8}), agent("i-2", cpu=8, mem="64g"))
    assert places(agents, gang("g", 2, cpu=8)) == [["a1", "nowhere"]]
    bare = tuple(replace(view, location=()) for view in agents)
    assert len(places(bare, gang("g", 2, cpu=8))) == 1


def test_spread_takes_other_zones_then_other_racks_then_other_agents() -> None:
    agents = racks(a1={"i-1": 8, "i-2": 8}, a2={"i-3": 8}, b1={"i-4": 8, "i-5": 8})
    assert places(agents, gang("g", 2), placement="topology-spread") in ([["a1", "b1"]], [["a2", "b1"]])
    assert places(agents, gang("g", 3), placement="topology-spread") == [["a1", "a2", "b1"]]
    snapshot = Snapshot(resource_group="default", agents=agents, pending=(gang("g", 5),))
    made = decide(snapshot, Policy(placement="topology-spread"), now=NOW, rng=random.Random(1))
    assert len({k.agent_id for k in made.placements[0].kernels}) == 5, "no two on one agent"


def test_an_agent_that_just_failed_the_session_is_the_last_choice() -> None:
    agents = racks(a1={"i-1": 8, "i-2": 8}, b1={"i-3": 8}, c1={"i-4": 8})
    avoiding = replace(gang("g", 2, cpu=8), avoided_agents=(AgentId("i-1"),))
    assert places(agents, avoiding) == [["a1", "b1"]]
    assert places(agents[:2], avoiding) == [["a1", "a1"]]


@pytest.mark.parametrize("placement", ["topology", "topology-spread"])
def test_preferences_make_nobody_wait_and_a_gang_that_cannot_be_placed_leaves_nothing(placement: str) -> None:
    agents = racks(a1={"i-1": 8}, b1={"i-2": 4})
    scheduler = IncrementalScheduler(
        Snapshot(resource_group="default", agents=agents, pending=(gang("large", 4), gang("small", 3)))
    )
    made = decide(scheduler, Policy(placement=placement), now=NOW, rng=random.Random(1))
    assert made.placements == ()
    assert {w.reason for w in made.waits} == {SkipReason.INSUFFICIENT_RESOURCE, SkipReason.BEHIND_ANOTHER}
    scheduler.withdraw(made.waits[0].session_ids[0])
    made = decide(scheduler, Policy(placement=placement), now=NOW, rng=random.Random(1))
    assert len(made.placements[0].kernels) == 3


def test_what_changes_is_forgotten_on_a_board_that_is_kept() -> None:
    scheduler = IncrementalScheduler(Snapshot(resource_group="default", agents=(agent("i-1"), agent("i-2"))))
    policy, dice = Policy(placement="least-fragmentation"), random.Random(1)
    for number in range(3000):
        who = session(f"s-{number}", slots(cpu=1, mem="1g"))
        scheduler.enqueue(who)
        (placed,) = decide(scheduler, policy, now=NOW, rng=dice).placements
        scheduler.release(placed.kernels[0].agent_id, placed.kernels[0].kernel_id)
    assert len(scheduler.index.free_states.log) <= 4096 + 4 * 2
