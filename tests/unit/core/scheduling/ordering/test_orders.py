"""Who comes first."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from ai.backend.common.structs import replace
from ai.backend.core.scheduling.decide import IncrementalScheduler, decide
from ai.backend.core.scheduling.ordering.fair_share import decay_averages, occupied_by_scope
from ai.backend.core.scheduling.plan import Plan
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import AgentView, PendingSession, Snapshot
from tests.unit.core.scheduling.builders import NOW, agent, session, slots


def plan(order: str, agents: list[AgentView], pending: list[PendingSession], **more: object) -> Plan:
    snapshot = Snapshot(resource_group="default", agents=tuple(agents), pending=tuple(pending), **more)  # type: ignore[arg-type]  # a builder
    return decide(snapshot, Policy(order=order), now=NOW, rng=random.Random(1))


def placed(made: Plan, pending: list[PendingSession]) -> list[str]:
    names = {s.session_id: s.name for s in pending}
    return [names[p.session_id] for p in made.placements]


def test_lifo_is_by_priority_then_youth() -> None:
    pending = [session(n, slots(cpu=1), age_s=a, priority=p) for n, a, p in (("a", 9, 1), ("b", 5, 1), ("c", 7, 2))]
    assert placed(plan("lifo", [agent("i-1")], pending), pending) == ["c", "b", "a"]


def test_drf_serves_the_least_dominant_share() -> None:
    """The example of the DRF paper (NSDI'11, figure 1): 9 CPUs and 18 GB, <1, 4> against <3, 1>: 3 and 2 tasks."""
    a = [session(f"a{n}", slots(cpu=1, mem="4g"), age_s=n, scope=("d", "p", "a")) for n in range(9)]
    b = [session(f"b{n}", slots(cpu=3, mem="1g"), age_s=n, scope=("d", "p", "b")) for n in range(9)]
    made = plan("drf", [agent("i-1", cpu=9, mem="18g")], a + b)
    assert Counter(name[0] for name in placed(made, a + b)) == {"a": 3, "b": 2}


def test_drf_counts_what_is_held() -> None:
    pending = [session(n, slots(cpu=1), scope=("d", "p", n)) for n in "ab"]
    made = plan("drf", [agent("i-1")], pending, occupied=occupied_by_scope([(("d", "p", "a"), slots(cpu=1))]))
    assert placed(made, pending) == ["b", "a"]


def test_fair_share_is_fair_between_domains_then_projects_then_users() -> None:
    scopes = [("d1", "p1", "u1"), ("d1", "p1", "u2"), ("d1", "p2", "u3"), ("d2", "p3", "u4")]
    pending = [session("/".join(s), slots(cpu=1), age_s=99 - i, scope=s) for i, s in enumerate(scopes * 8)]
    got = Counter(placed(plan("fair-share", [agent("i-1", cpu=16)], pending), pending))
    assert got == {"d2/p3/u4": 8, "d1/p2/u3": 4, "d1/p1/u1": 2, "d1/p1/u2": 2}


def test_fair_share_obeys_weights_and_the_past() -> None:
    pending = [session(n, slots(cpu=1), age_s=99 - i, scope=(n,)) for i in range(12) for n in "ab"]
    weighted = plan("fair-share", [agent("i-1", cpu=12)], pending, weights={"a": 3.0})
    assert Counter(placed(weighted, pending)) == {"a": 9, "b": 3}
    past = plan("fair-share", [agent("i-1", cpu=12)], pending, used_lately={"a": slots(cpu=4)})
    assert Counter(placed(past, pending)) == {"a": 4, "b": 8}


def test_larger_priorities_come_first_in_every_order() -> None:
    pending = [session(n, slots(cpu=1), priority=p, scope=(n,)) for n, p in (("a", 1), ("b", 2))]
    for order in ("fifo", "lifo", "drf", "fair-share"):
        held = {"b": slots(cpu=3)}
        made = plan(order, [agent("i-1", cpu=8)], pending, occupied=held, used_lately=held)
        assert placed(made, pending)[0] == "b", order


def test_fair_share_converges_when_one_came_late() -> None:
    """Two users with endless work; one has used everything for a week. Over time each gets half."""
    rounds, half_life_s, step_s = 200, 100_000.0, 10_000.0
    used = {"a": slots(cpu=10)}
    got: Counter[str] = Counter()
    for number in range(rounds):
        pending = [session(n, slots(cpu=1), age_s=i, scope=(n,)) for i in range(10) for n in "ab"]
        made = placed(plan("fair-share", [agent("i-1", cpu=10)], pending, used_lately=used), pending)
        now = occupied_by_scope([((name,), slots(cpu=1)) for name in made])
        used = decay_averages(used, now, elapsed_s=step_s, half_life_s=half_life_s)
        if number >= rounds // 2:
            got.update(made)
    assert got["a"] == pytest.approx(got["b"], rel=0.02)
    assert sum(got.values()) == 10 * (rounds - rounds // 2), "nothing is left idle for fairness"


def test_what_was_used_is_half_forgotten_after_a_half_life() -> None:
    before = {"a": slots(cpu=8)}
    assert decay_averages(before, {}, elapsed_s=60, half_life_s=60) == {"a": slots(cpu=4)}
    assert decay_averages(before, {"a": slots(cpu=8)}, elapsed_s=1234, half_life_s=60) == before
    assert decay_averages({}, {"a": slots(cpu=8)}, elapsed_s=120, half_life_s=60) == {"a": slots(cpu=6)}


def test_round_robin_goes_on_where_it_was() -> None:
    agents = [agent(f"i-{n}") for n in range(3)]
    policy = Policy(placement="round-robin")

    def places(snapshot: Snapshot) -> list[str]:
        made = decide(snapshot, policy, now=NOW, rng=random.Random(1))
        return [p.kernels[0].agent_id for p in made.placements]

    pending = tuple(session(str(n), slots(cpu=1), age_s=9 - n) for n in range(4))
    snapshot = Snapshot(resource_group="default", agents=tuple(agents), pending=pending)
    assert places(snapshot) == ["i-0", "i-1", "i-2", "i-0"]
    later = Snapshot(resource_group="default", agents=tuple(agents), pending=pending[:2], last_agent=agents[1].agent_id)
    assert places(later) == ["i-2", "i-0"]
    two = (agents[0].agent_id, agents[2].agent_id)
    gang = session("gang", *[slots(cpu=4)] * 3, age_s=99, multi=True, designated_agents=two)
    assert places(replace(later, pending=(gang, *pending[:2]))) == ["i-2", "i-0"], "what was given back was not chosen"


def test_every_order_ends_with_many_owners() -> None:
    pending = [session(str(n), slots(cpu=1), age_s=n, scope=("d", f"p{n % 7}", f"u{n % 21}")) for n in range(200)]
    for order in ("drf", "fair-share"):
        snapshot = Snapshot(resource_group="g", agents=(agent("i-1", cpu=50),), pending=tuple(pending))
        made = decide(IncrementalScheduler(snapshot), Policy(order=order), now=NOW, rng=random.Random(1))
        assert len(made.placements) == 50
        per_user = Counter(p.scope for p in pending if p.session_id in {m.session_id for m in made.placements})
        assert max(per_user.values()) - min(per_user.values()) <= 1
