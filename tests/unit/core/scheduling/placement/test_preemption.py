"""Who makes way for whom."""

from __future__ import annotations

import random
from datetime import timedelta

from ai.backend.common.ids import SessionId
from ai.backend.common.structs import replace
from ai.backend.core.scheduling.decide import decide
from ai.backend.core.scheduling.plan import Plan, SkipReason
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import AgentView, PendingSession, RunningSession, Snapshot
from tests.unit.core.scheduling.builders import NOW, agent, holding, session, slots


def runs(
    view: AgentView, *, priority: int = 1, age_s: float = 60, **quantities: int
) -> tuple[AgentView, RunningSession]:
    """The agent with a session of one kernel on it."""
    view = holding(view, **quantities)
    kernel = view.held[-1]
    made = RunningSession(
        session_id=SessionId(kernel.kernel_id),
        priority=priority,
        started_at=NOW - timedelta(seconds=age_s),
        kernels=((view.agent_id, kernel.kernel_id),),
    )
    return view, made


def plan(
    agents: list[AgentView], running: list[RunningSession], *pending: PendingSession, preempts: bool = True
) -> Plan:
    snapshot = Snapshot(resource_group="g", agents=tuple(agents), pending=pending, running=tuple(running))
    return decide(snapshot, Policy(preempts=preempts), now=NOW, rng=random.Random(1))


def evicted(made: Plan) -> list[SessionId]:
    return [e.session_id for e in made.evictions]


def test_a_session_of_larger_priority_ends_a_smaller_one_and_keeps_the_place() -> None:
    view, victim = runs(agent("i-1"), cpu=4)
    urgent, other = session("urgent", slots(cpu=4), priority=9), session("other", slots(cpu=1), priority=5)
    made = plan([view], [victim], urgent, other)
    assert evicted(made) == [victim.session_id]
    assert made.evictions[0].in_favour_of == urgent.session_id
    assert [(s.reason, s.message) for s in made.skips] == [
        (SkipReason.PREEMPTING, "1 session of smaller priority on i-1 will end for it"),
        (SkipReason.BEHIND_ANOTHER, "waits behind session urgent, which came first"),
    ]
    assert evicted(plan([view], [victim], urgent, preempts=False)) == []


def test_equal_priorities_and_sessions_that_do_not_allow_it_are_left_alone() -> None:
    view, victim = runs(agent("i-1"), cpu=4, priority=9)
    urgent = session("urgent", slots(cpu=4), priority=9)
    assert evicted(plan([view], [victim], urgent)) == []
    safe = replace(victim, priority=1, is_preemptible=False)
    assert evicted(plan([view], [safe], urgent)) == []


def test_no_more_end_than_must() -> None:
    view, large = runs(agent("i-1"), cpu=3, priority=2)
    view, small = runs(view, cpu=1, priority=1)
    made = plan([view], [large, small], session("urgent", slots(cpu=3), priority=9))
    assert evicted(made) == [large.session_id], "ending the small one as well would be for nothing"


def test_the_cheapest_victims_of_all_agents_are_chosen() -> None:
    first, valued = runs(agent("i-1"), cpu=4, priority=5)
    second, old = runs(agent("i-2"), cpu=4, priority=1, age_s=9000)
    third, young = runs(agent("i-3"), cpu=4, priority=1, age_s=9)
    made = plan([first, second, third], [valued, old, young], session("urgent", slots(cpu=4), priority=9))
    assert evicted(made) == [young.session_id]


def test_what_ends_already_is_waited_for_and_nobody_else_is_ended() -> None:
    first, ending = runs(agent("i-1"), cpu=4)
    second, other = runs(agent("i-2"), cpu=4)
    made = plan([first, second], [replace(ending, is_ending=True), other], session("urgent", slots(cpu=4), priority=9))
    assert evicted(made) == []
    assert made.skips[0].message == "sessions on i-1 are ending, and their place is kept for it"


def test_two_urgent_sessions_do_not_share_a_victim() -> None:
    pairs = [runs(agent(f"i-{n}"), cpu=4) for n in range(3)]
    urgent = [session(f"u{n}", slots(cpu=4), priority=9, age_s=9 - n) for n in range(2)]
    made = plan([a for a, _ in pairs], [r for _, r in pairs], *urgent)
    assert len(set(evicted(made))) == 2
    assert [e.in_favour_of for e in made.evictions] == [u.session_id for u in urgent]


def test_a_policy_may_end_the_oldest_of_equals() -> None:
    view, older = runs(agent("i-1"), cpu=2, age_s=600)
    view, younger = runs(view, cpu=2, age_s=60)
    snapshot = Snapshot(
        resource_group="g", agents=(view,), pending=(session("u", slots(cpu=2), priority=9),), running=(older, younger)
    )
    for oldest_first, victim in ((False, younger), (True, older)):
        policy = Policy(preempts=True, oldest_first=oldest_first)
        assert evicted(decide(snapshot, policy, now=NOW, rng=random.Random(1))) == [victim.session_id]


def test_a_plan_says_who_waits_again() -> None:
    one, first = runs(agent("i-1"), cpu=4)
    two, second = runs(agent("i-2"), cpu=4)
    urgent = [session(f"urgent-{n}", slots(cpu=4), priority=9) for n in (1, 2)]
    made = plan([one, two], [replace(first, starts_over=True), second], *urgent)
    assert {e.session_id: e.starts_over for e in made.evictions} == {first.session_id: True, second.session_id: False}
