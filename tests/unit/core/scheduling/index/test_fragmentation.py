"""Where requests go so that the least of the accelerators is lost."""

from __future__ import annotations

import random

import pytest

from ai.backend.common.structs import replace
from ai.backend.core.scheduling.decide import IncrementalScheduler, decide
from ai.backend.core.scheduling.index.fragmentation import TypicalRequest, lost_units, typical_requests
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import AgentView, PendingSession, Snapshot
from tests.unit.core.scheduling.builders import NOW, agent, holding, session, slots

POLICY = Policy(placement="least-fragmentation")


def place(agents: list[AgentView], *pending: PendingSession, workload: object = ()) -> list[str]:
    snapshot = Snapshot(resource_group="g", agents=tuple(agents), pending=pending, workload=workload)  # type: ignore[arg-type]  # a builder
    made = decide(IncrementalScheduler(snapshot), POLICY, now=NOW, rng=random.Random(1))
    return [p.kernels[0].agent_id for p in made.placements]


USUAL = ((slots(cpu=4, cuda_device=1), 9), (slots(cpu=16, cuda_device=4), 1))


def test_what_is_usual_by_unit() -> None:
    found = typical_requests(
        [(slots(cpu=4, cuda_device=1), 3.0), (slots(cpu=2, cuda_device=2), 1.0), (slots(cpu=5), 4.0)]
    )
    assert found.keys() == {"cuda.device"}
    mean, deviation = found["cuda.device"].need["cpu"]
    assert mean == pytest.approx(14 / 5)
    assert deviation == pytest.approx(((3 * 1.2**2 + 3.6**2) / 5) ** 0.5)
    assert found["cuda.device"].whole == {1: 3 / 8, 2: 1 / 8}


def test_nothing_is_lost_where_there_is_enough_and_all_of_it_where_there_is_nothing() -> None:
    what = TypicalRequest(need={"cpu": (4.0, 1.0)}, whole={4: 0.5})
    assert lost_units(what, 4, 4, {"cpu": 1000.0}) == pytest.approx(0.0)
    assert lost_units(what, 4, 4, {"cpu": 0.0}) == pytest.approx(4.0)
    assert lost_units(what, 3, 3, {"cpu": 1000.0}) == pytest.approx(1.5), "four devices are not to be had"
    assert 0.0 < lost_units(what, 4, 4, {"cpu": 16.0}) < 1.0, "on the edge it is half of the spread"


def test_cores_are_taken_where_accelerators_do_not_need_them() -> None:
    agents = [agent("i-1", cpu=16, cuda=4), agent("i-2", cpu=16, cuda=1)]
    assert place(agents, session("a", slots(cpu=8)), workload=USUAL) == ["i-2"]


def test_whole_nodes_are_kept_for_those_who_need_four() -> None:
    agents = [agent("i-1", cpu=64, cuda=4), holding(agent("i-2", cpu=64, cuda=4), cuda_device=1)]
    assert place(agents, session("a", slots(cpu=4, cuda_device=1)), workload=USUAL) == ["i-2"]


def test_a_part_goes_where_it_leaves_the_least() -> None:
    agents = [agent("i-1", cpu=64, shares=[1, 1])]
    agents += [
        holding(agent(f"i-{n}", cpu=64, shares=[1, 1]), cuda_shares=taken) for n, taken in ((2, "0.4"), (3, "0.6"))
    ]
    workload = ((slots(cpu=1, cuda_shares="0.4"), 1),)
    assert place(agents, session("a", slots(cpu=1, cuda_shares="0.4")), workload=workload) == ["i-3"]


def test_without_a_workload_what_is_held_and_waits_is_usual() -> None:
    agents = [agent("i-1", cpu=16, cuda=4), agent("i-2", cpu=16, cuda=1)]
    pending = [
        session("a", slots(cpu=8), age_s=9),
        session("b", slots(cpu=4, cuda_device=1)),
        session("c", slots(cpu=4, cuda_device=4)),
    ]
    assert place(agents, *pending) == ["i-2", "i-2", "i-1"]


def test_what_is_remembered_is_what_a_new_board_finds() -> None:
    """Sessions come and go on one scheduler; every decision is also made on a new scheduler of the same state."""
    rng = random.Random(4)
    shapes = [slots(cpu=c, cuda_shares=g) for c in (1, 3) for g in ("0.3", "0.5", "0.8", "1", "2")]
    workload = tuple((s, n + 1) for n, s in enumerate(shapes))
    agents = [agent(f"i-{n}", cpu=8 + n % 3, shares=[1] * (2 + n % 2)) for n in range(6)]
    scheduler = IncrementalScheduler(Snapshot(resource_group="g", agents=tuple(agents), workload=workload))
    held = {a.agent_id: a for a in agents}
    for number in range(120):
        who = session(str(number), rng.choice(shapes), age_s=-number)
        fresh = IncrementalScheduler(
            Snapshot(resource_group="g", agents=tuple(held.values()), pending=(who,), workload=workload)
        )
        scheduler.enqueue(who)
        kept, new = (decide(b, POLICY, now=NOW, rng=random.Random(1)) for b in (scheduler, fresh))
        assert kept.placements == new.placements
        scheduler.withdraw(who.session_id)
        for kernel in (k for p in kept.placements for k in p.kernels):
            view = holding(held[kernel.agent_id], **{s.replace(".", "_"): str(q) for s, q in who.total.items()})
            mine = replace(view.held[-1], kernel_id=kernel.kernel_id, devices=kernel.devices)
            held[kernel.agent_id] = replace(view, held=(*view.held[:-1], mine))
        if rng.random() < 0.4:
            view = held[rng.choice(list(held))]
            if view.held:
                over = rng.choice(view.held)
                scheduler.release(view.agent_id, over.kernel_id)
                held[view.agent_id] = replace(view, held=tuple(h for h in view.held if h is not over))
