"""Who goes where, in which order, and what those are told who do not."""

from __future__ import annotations

import random
from datetime import timedelta
from uuid import UUID

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.states import SessionResult, SessionStatus
from ai.backend.common.structs import replace
from ai.backend.core.scheduling.decide import decide
from ai.backend.core.scheduling.plan import Plan, SkipReason
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import AgentView, Dependency, PendingSession, Quota, Snapshot
from tests.unit.core.allocation.builders import plain
from tests.unit.core.scheduling.builders import NOW, agent, failing, holding, session, slots

R = SkipReason
DEFAULT = Policy()


def plan(agents: list[AgentView], pending: list[PendingSession], policy: Policy = DEFAULT, **more: object) -> Plan:
    snapshot = Snapshot(resource_group="default", agents=tuple(agents), pending=tuple(pending), **more)  # type: ignore[arg-type]  # a builder
    made = decide(snapshot, policy, now=NOW, rng=random.Random(1))
    told = [p.session_id for p in made.placements] + [s.session_id for s in made.skips]
    assert sorted(told) == sorted(s.session_id for s in pending), "each once"
    return made


def where(made: Plan, who: PendingSession) -> list[str] | None:
    found = next((p for p in made.placements if p.session_id == who.session_id), None)
    return None if found is None else [k.agent_id for k in found.kernels]


def why(made: Plan, who: PendingSession) -> tuple[SkipReason, str]:
    skip = made.skip_of(who.session_id)
    assert skip is not None
    return skip.reason, skip.message


def test_a_placement_goes_down_to_devices_and_carries_the_generation() -> None:
    wanted = session("a", slots(cpu=2, mem="1g", cuda_device=1))
    made = plan([agent("i-1", cuda=2)], [wanted])
    (placement,) = made.placements
    (kernel,) = placement.kernels
    assert (kernel.agent_id, kernel.generation) == ("i-1", 7)
    assert plain(kernel.devices) == {
        "cuda.device": {"0": "1"},
        "cpu": {"0": "1", "1": "1"},
        "mem": {"0": str(2**30)},
    }


def test_devices_that_are_held_are_not_planned_again() -> None:
    first, second = session("a", slots(cuda_device=1), age_s=1), session("b", slots(cuda_device=1))
    made = plan([holding(agent("i-1", cuda=3), cuda_device=1)], [second, first])
    planned = [plain(k.devices)["cuda.device"] for p in made.placements for k in p.kernels]
    assert planned == [{"1": "1"}, {"2": "1"}]


def test_fifo_is_by_priority_then_age() -> None:
    old, new = session("old", slots(cpu=2), age_s=10), session("new", slots(cpu=2))
    urgent = session("urgent", slots(cpu=2), priority=20)
    made = plan([agent("i-1", cpu=4)], [new, old, urgent])
    assert [p.session_id for p in made.placements] == [urgent.session_id, old.session_id]


@pytest.mark.parametrize(("placement", "expected"), [("concentrated", "i-2"), ("dispersed", "i-1")])
def test_placement(placement: str, expected: str) -> None:
    agents = [agent("i-1"), holding(agent("i-2"), cpu=2), holding(agent("i-3"), cpu=1)]
    wanted = session("a", slots(cpu=1))
    assert where(plan(agents, [wanted], Policy(placement=placement)), wanted) == [expected]


@pytest.mark.parametrize("placement", ["concentrated", "dispersed"])
def test_agents_with_accelerators_are_left_to_those_who_need_them(placement: str) -> None:
    agents = [agent("i-gpu", cuda=8, cpu=64), agent("i-cpu", cpu=4)]
    wanted = session("a", slots(cpu=1))
    assert where(plan(agents, [wanted], Policy(placement=placement)), wanted) == ["i-cpu"]


def test_dispersed_draws_among_equals_by_the_given_dice() -> None:
    agents = tuple(agent(f"i-{n}") for n in range(8))
    snapshot = Snapshot(resource_group="default", agents=agents, pending=(session("a", slots(cpu=1)),))
    plans = [decide(snapshot, Policy(), now=NOW, rng=random.Random(seed)) for seed in (1, 1, 2, 3, 4)]
    assert plans[0] == plans[1]
    assert len({p.placements[0].kernels[0].agent_id for p in plans}) > 1


def test_single_node_sessions_go_to_one_agent_whole() -> None:
    wanted = session("a", slots(cpu=2), slots(cpu=2))
    agents = [holding(agent("i-1"), cpu=1), agent("i-2")]
    assert where(plan(agents, [wanted]), wanted) == ["i-2", "i-2"]
    made = plan([holding(a, cpu=1) for a in agents], [wanted])
    assert why(made, wanted) == (R.INSUFFICIENT_RESOURCE, "needs 4 cpu on one node; most free is 3 on i-2")


def test_multi_node_sessions_spread_or_wait_whole() -> None:
    wanted = session("a", slots(cpu=3), slots(cpu=3), multi=True)
    late = session("b", slots(cpu=4))
    assert sorted(where(plan([agent("i-1"), agent("i-2")], [wanted]), wanted) or []) == ["i-1", "i-2"]
    made = plan([agent("i-1"), holding(agent("i-2"), cpu=3), agent("i-9", cpu=2)], [wanted])
    reason, message = why(made, wanted)
    assert reason is R.INSUFFICIENT_RESOURCE
    assert message == "needs 6 cpu for 2 kernels at once; free on all nodes together is 5 cpu"
    assert made.placements == ()
    rolled_back = plan(
        [agent("i-1"), agent("i-9", cpu=4)], [session("c", slots(cpu=3), slots(cpu=9), multi=True), late]
    )
    assert where(rolled_back, late) is not None, "what a failed attempt took is free again"


def test_the_message_names_the_slot_and_the_node_that_comes_closest() -> None:
    wanted = session("a", slots(cuda_device=4))
    agents = [holding(agent("i-gpu-01", cuda=4), cuda_device=3), holding(agent("i-gpu-02", cuda=4), cuda_device=1)]
    made = plan([*agents, agent("i-cpu")], [wanted])
    assert why(made, wanted) == (
        R.INSUFFICIENT_RESOURCE,
        "needs 4 cuda.device on one node; most free is 3 on i-gpu-02",
    )


def test_sizes_are_written_for_people() -> None:
    wanted = session("a", slots(mem="3g"))
    made = plan([holding(agent("i-1", mem="4g"), mem="1.5g")], [wanted])
    assert why(made, wanted)[1] == "needs 3g mem on one node; most free is 2.5g on i-1"


def test_a_combination_that_no_node_has() -> None:
    wanted = session("a", slots(cpu=3, mem="6g"))
    made = plan([holding(agent("i-1"), cpu=2), holding(agent("i-2"), mem="4g")], [wanted])
    reason, message = why(made, wanted)
    assert reason is R.INSUFFICIENT_RESOURCE
    assert message == "needs 3 cpu, 6g mem on one node; i-1 comes closest and lacks 1 cpu"


def test_fragmented_shares_are_explained() -> None:
    wanted = session("a", slots(cuda_shares="0.8"))
    view = agent("i-1", shares=[1, 1])
    view = holding(holding(view, cuda_shares="0.5"), cuda_shares="0.5")
    reason, message = why(plan([view], [wanted]), wanted)
    assert reason is R.INSUFFICIENT_RESOURCE
    assert "scattered" in message


@pytest.mark.parametrize(
    ("request_", "reason", "text"),
    [
        (slots(tpu_device=1), R.UNSUPPORTED_RESOURCE, "no agent has the resource slot tpu.device; there are cpu, mem"),
        (slots(cpu=5), R.NEVER_FITS, "needs 5 cpu on one node; the largest node, i-2, has 4"),
        (slots(cpu="0.5"), R.NEVER_FITS, "not a multiple of 1"),
    ],
)
def test_what_can_never_run(request_: object, reason: SkipReason, text: str) -> None:
    wanted = session("a", request_)  # type: ignore[arg-type]  # parametrized
    behind = session("b", slots(cpu=1))
    made = plan([agent("i-1"), agent("i-2")], [wanted, behind])
    assert why(made, wanted)[0] is reason
    assert text in why(made, wanted)[1]
    assert where(made, behind), "it holds nobody back"


def test_what_only_failed_devices_could_serve_is_told_so_and_holds_nobody_back() -> None:
    wanted, behind = session("a", slots(cuda_device=2), age_s=9), session("b", slots(cpu=1))
    agents = [failing(agent("i-1", cuda=2), "cuda", _0="Xid 79", _1=""), agent("i-2", cuda=1)]
    made = plan(agents, [wanted, behind])
    assert why(made, wanted) == (
        R.DEVICES_FAILED,
        "needs 2 cuda.device; devices for it are withheld: 0 on i-1 (Xid 79), 1 on i-1",
    )
    assert where(made, behind)
    too_much = session("c", slots(cuda_device=3))
    assert why(plan(agents, [too_much]), too_much)[0] is R.NEVER_FITS
    assert where(plan([*agents, agent("i-3", cuda=2)], [wanted]), wanted) == ["i-3"]


def test_all_devices_of_a_slot_have_failed() -> None:
    wanted = session("a", slots(cuda_device=1))
    sick = failing(agent("i-1", cuda=1), "cuda", _0="too hot")
    assert why(plan([sick, agent("i-2")], [wanted]), wanted) == (
        R.DEVICES_FAILED,
        "needs 1 cuda.device; devices for it are withheld: 0 on i-1 (too hot)",
    )


def test_a_multi_node_session_that_failed_devices_could_serve() -> None:
    wanted = session("a", *[slots(cuda_device=1)] * 2, multi=True)
    agents = [agent("i-1", cuda=1), failing(agent("i-2", cuda=1), "cuda", _0="too hot")]
    assert why(plan(agents, [wanted]), wanted) == (
        R.DEVICES_FAILED,
        "needs 2 cuda.device; devices for it are withheld: 0 on i-2 (too hot)",
    )


def test_a_multi_node_session_larger_than_the_cluster_holds_nobody_back() -> None:
    wanted = session("a", *[slots(cpu=3)] * 3, age_s=9, multi=True)
    behind = session("b", slots(cpu=1))
    made = plan([agent("i-1"), agent("i-2")], [wanted, behind])
    assert why(made, wanted)[0] is R.NEVER_FITS
    assert where(made, behind)


def test_the_head_of_the_line_holds_back_the_agents_that_could_serve_it() -> None:
    head = session("head", slots(cuda_device=2), age_s=9)
    small = session("small", slots(cuda_device=1), age_s=5)
    elsewhere = session("elsewhere", slots(cpu=1))
    agents = [holding(agent("i-gpu", cuda=2), cuda_device=1), agent("i-cpu")]
    made = plan(agents, [head, small, elsewhere])
    assert why(made, head)[0] is R.INSUFFICIENT_RESOURCE
    assert why(made, small) == (R.BEHIND_ANOTHER, "waits behind session head, which came first")
    assert where(made, elsewhere) == ["i-cpu"]


def test_no_agents_at_all() -> None:
    wanted = session("a", slots(cpu=1))
    assert why(plan([], [wanted]), wanted)[0] is R.NO_AGENT
    assert why(plan([agent("i-1", is_schedulable=False)], [wanted]), wanted)[0] is R.NO_AGENT


def test_architecture_image_and_designation_are_obeyed() -> None:
    agents = [agent("i-arm", architecture="aarch64"), agent("i-1", images=frozenset({"python"}))]
    wanted = session("a", slots(cpu=1))
    kernel = replace(wanted.kernels[0], architecture="aarch64")
    assert where(plan(agents, [replace(wanted, kernels=(kernel,))]), wanted) == ["i-arm"]
    s390 = replace(wanted, kernels=(replace(kernel, architecture="s390x"),))
    assert "architecture s390x" in why(plan(agents, [s390]), wanted)[1]
    r = replace(wanted, kernels=(replace(wanted.kernels[0], image="r"),))
    assert where(plan(agents, [r]), wanted) == ["i-arm"]
    assert why(plan(agents[1:], [r]), wanted) == (R.NO_MATCHING_AGENT, "no agent can start the image r")
    there = replace(wanted, designated_agents=(AgentId("i-arm"),))
    assert where(plan(agents, [there]), wanted) == ["i-arm"]
    assert (
        "designated agent i-0" in why(plan(agents, [replace(wanted, designated_agents=(AgentId("i-0"),))]), wanted)[1]
    )


def test_an_agent_that_just_failed_the_session_is_the_last_choice() -> None:
    wanted = session("a", slots(cpu=1), avoided_agents=(AgentId("i-1"),))
    agents = [agent("i-1", cpu=64), holding(agent("i-2"), cpu=2)]
    assert where(plan(agents, [wanted]), wanted) == ["i-2"]
    assert where(plan(agents[:1], [wanted]), wanted) == ["i-1"]


def test_a_kernel_limit_is_obeyed() -> None:
    wanted = session("a", slots(cpu=1), slots(cpu=1))
    view = holding(agent("i-1", kernel_limit=2), cpu=1)
    reason, message = why(plan([view], [wanted]), wanted)
    assert (reason, message) == (
        R.INSUFFICIENT_RESOURCE,
        "needs room for 2 more kernels; no agent may hold so many (i-1 1 now)",
    )
    full = holding(view, cpu=1)
    assert "needs room for 2 more kernels" in why(plan([full], [wanted]), wanted)[1]
    assert why(plan([agent("i-1", kernel_limit=1)], [wanted]), wanted)[0] is R.NEVER_FITS


def test_what_an_agent_keeps_for_itself_is_no_kernel_and_nobody_gets_it() -> None:
    view = agent("i-1", cpu=4, kernel_limit=1, reserved=slots(cpu=1, mem="1g"))
    small, large = session("a", slots(cpu=3)), session("b", slots(cpu=4))
    assert where(plan([view], [small]), small) == ["i-1"]
    reason, message = why(plan([view], [large]), large)
    assert (reason, message) == (R.NEVER_FITS, "needs 4 cpu on one node; the largest node, i-1, has 3")
    gang = session("c", slots(cpu=3), slots(cpu=4), multi=True)
    assert why(plan([view, agent("i-2", cpu=4, reserved=slots(cpu=1))], [gang]), gang)[0] is R.NEVER_FITS
    assert where(plan([view, agent("i-2", cpu=4)], [gang]), gang) == ["i-1", "i-2"]


def test_not_before_its_time() -> None:
    wanted = session("a", slots(cpu=1), starts_at=NOW + timedelta(hours=1))
    assert why(plan([agent("i-1")], [wanted]), wanted)[0] is R.NOT_YET
    assert where(plan([agent("i-1")], [replace(wanted, starts_at=NOW)]), wanted)


@pytest.mark.parametrize(
    ("status", "result", "reason"),
    [
        (SessionStatus.RUNNING, SessionResult.UNDEFINED, R.DEPENDENCY_UNFINISHED),
        (SessionStatus.TERMINATED, SessionResult.SUCCESS, None),
        (SessionStatus.TERMINATED, SessionResult.UNDEFINED, None),
        (SessionStatus.TERMINATED, SessionResult.FAILURE, R.DEPENDENCY_FAILED),
        (SessionStatus.ERROR, SessionResult.UNDEFINED, R.DEPENDENCY_FAILED),
        (SessionStatus.CANCELLED, SessionResult.UNDEFINED, R.DEPENDENCY_FAILED),
    ],
)
def test_dependencies(status: SessionStatus, result: SessionResult, reason: SkipReason | None) -> None:
    dependency = Dependency(session_id=SessionId(UUID(int=1)), name="before", status=status, result=result)
    wanted = session("a", slots(cpu=1), dependencies=(dependency,))
    made = plan([agent("i-1")], [wanted])
    if reason is None:
        assert where(made, wanted)
    else:
        assert why(made, wanted)[0] is reason
        skip = made.skip_of(wanted.session_id)
        assert skip is not None
        assert skip.is_final is (reason is R.DEPENDENCY_FAILED)


def test_quotas_count_what_this_round_places() -> None:
    quotas = {"k": Quota(label="your keypair", limit=slots(cpu=3), used=slots(cpu=1))}
    one, two = (session(n, slots(cpu=1, mem="1g"), quotas=("k",), age_s=a) for n, a in (("a", 9), ("b", 8)))
    third, other = session("c", slots(cpu=1), quotas=("k",), age_s=7), session("d", slots(cpu=1))
    made = plan([agent("i-1", cpu=9)], [one, two, third, other], quotas=quotas)
    assert why(made, third) == (
        R.QUOTA_EXCEEDED,
        "your keypair may use 3 cpu and uses 3 cpu already; this session needs 1 cpu",
    )
    assert all(where(made, s) for s in (one, two, other))


def test_a_bound_on_concurrent_sessions() -> None:
    quotas = {"k": Quota(label="your keypair", max_sessions=1)}
    one, two = session("a", slots(cpu=1), quotas=("k",), age_s=1), session("b", slots(cpu=1), quotas=("k", "no-such"))
    made = plan([agent("i-1")], [one, two], quotas=quotas)
    assert why(made, two) == (R.QUOTA_EXCEEDED, "your keypair may run 1 sessions at once")


def test_an_agent_whose_devices_contradict_each_other_is_left_out_and_named() -> None:
    good = agent("i-1")
    broken = replace(good, agent_id=AgentId("i-0"), plugins=(good.plugins[0], good.plugins[0]))
    wanted = session("a", slots(cpu=1))
    made = plan([broken, good], [wanted])
    assert where(made, wanted) == ["i-1"]
    assert [a for a, _ in made.broken_agents] == ["i-0"]


def test_unknown_policies_are_refused() -> None:
    for policy in (Policy(order="magic"), Policy(placement="magic")):
        with pytest.raises(InvalidInput):
            plan([], [], policy)


def test_a_second_round_on_the_outcome_changes_nothing_for_those_who_wait() -> None:
    agents = [agent(f"i-{n}", cuda=2) for n in range(2)]
    pending = [session(str(n), slots(cpu=1, cuda_device=n % 3), age_s=9 - n) for n in range(9)]
    first = plan(agents, pending, Policy(placement="concentrated"))
    by_id = {s.session_id: s for s in pending}
    after = agents
    for placement in first.placements:
        for kernel in placement.kernels:
            quantities = {k.replace(".", "_"): str(v) for k, v in by_id[placement.session_id].total.items()}
            after = [holding(a, **quantities) if a.agent_id == kernel.agent_id else a for a in after]
    waiting = [by_id[s.session_id] for s in first.skips]
    assert plan(after, waiting, Policy(placement="concentrated")).placements == ()


def test_kernel_ids_are_kept_in_order() -> None:
    wanted = session("a", slots(cpu=1), slots(cpu=2), slots(cpu=1), multi=True)
    made = plan([agent("i-1", cpu=2), agent("i-2", cpu=2)], [wanted])
    ids: list[KernelId] = [k.kernel_id for k in made.placements[0].kernels]
    assert ids == [k.kernel_id for k in wanted.kernels]
