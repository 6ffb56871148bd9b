"""Requests that are judged before they are sessions."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ai.backend.common.devices import VariantProperty
from ai.backend.common.structs import replace
from ai.backend.core.scheduling.decide import decide
from ai.backend.core.scheduling.plan import SkipReason
from ai.backend.core.scheduling.policy import ORDERS, Policy
from ai.backend.core.scheduling.snapshot import AgentView, Dependency, PendingSession, Quota, Snapshot
from ai.backend.core.scheduling.trial import (
    MAX_WITHHELD,
    Exclusion,
    Outcome,
    Proposal,
    Trial,
    TrialScheduler,
    outcome_of,
)
from tests.unit.core.scheduling.builders import NOW, agent, failing, holding, session, slots
from tests.unit.core.scheduling.test_device_requests import gpus
from tests.unit.core.scheduling.test_properties import agents_, ask, build, requests_


def attempt(snapshot: Snapshot, *tried: PendingSession, policy: Policy | None = None) -> Trial:
    return TrialScheduler().run(snapshot, policy or Policy(), now=NOW, rng=random.Random(1), tried=tried)


def group(*agents: object, **more: object) -> Snapshot:
    return Snapshot(resource_group="default", agents=agents, **more)  # type: ignore[arg-type]  # a builder


@settings(max_examples=60, deadline=None)
@given(agents_, requests_, requests_, st.sampled_from(sorted(ORDERS)), st.booleans())
def test_a_trial_says_what_the_scheduler_then_does(
    machines: list[tuple[int, int, int, int, int | None]],
    waiting: list[tuple[int, int, int, int, int]],
    asked: list[tuple[int, int, int, int, int]],
    order: str,
    multi: bool,
) -> None:
    """One scheduler serves all trials; each is compared with a decision from scratch on the queue with the session."""
    snapshot, policy = group(*build(machines), pending=ask(waiting, multi=multi)), Policy(order=order)
    trials = TrialScheduler()
    for request in ask(asked, multi=multi):
        candidate = replace(request, enqueued_at=NOW)
        trial = trials.run(snapshot, policy, now=NOW, rng=random.Random(1), tried=(candidate,))
        queue = replace(snapshot, pending=(*snapshot.pending, candidate))
        plan = decide(queue, policy, now=NOW, rng=random.Random(1))
        skip = plan.skip_of(candidate.session_id)
        is_placed = any(placement.session_id == candidate.session_id for placement in plan.placements)
        assert (trial.outcome is Outcome.NOW) == is_placed
        assert (trial.skip.reason if trial.skip else None) == (skip.reason if skip else None)
        assert sorted(trial.order) == sorted(pending.session_id for pending in queue.pending)
        sorted_agents = [*trial.startable, *(name for names in trial.exclusions.values() for name in names)]
        assert sorted(sorted_agents) == sorted(view.agent_id for view in snapshot.agents)
        if is_placed:
            assert trial.startable


def test_a_request_that_fits_starts_now_and_counts_its_agents() -> None:
    snapshot = group(agent("i-1"), agent("i-2", is_schedulable=False), holding(agent("i-3"), cpu=4))
    trial = attempt(snapshot, session("a", slots(cpu=2, mem="1g")))
    assert (trial.outcome, trial.placed, list(trial.startable)) == (Outcome.NOW, 1, ["i-1"])
    assert trial.exclusions == {Exclusion.NOT_SCHEDULABLE: ["i-2"], Exclusion.BUSY: ["i-3"]}
    assert trial.largest_free == slots(cpu=4, mem="8g")


def test_several_sessions_are_tried_together() -> None:
    trial = attempt(group(agent("i-1", cpu=4)), *(session(f"s-{n}", slots(cpu=3, mem="1g")) for n in range(2)))
    assert (trial.outcome, trial.placed) == (Outcome.WAITS, 1)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"architecture": "aarch64"}, Exclusion.ARCHITECTURE),
        ({"images": frozenset()}, Exclusion.IMAGE),
        ({"cpu": 1}, Exclusion.TOO_SMALL),
        ({"cuda": 0}, Exclusion.NO_SUCH_DEVICE),
    ],
)
def test_agents_are_excluded_by_what_they_lack(changes: dict[str, object], why: Exclusion) -> None:
    machine = agent("i-1", **{"cuda": 2, **changes})  # type: ignore[arg-type]  # a builder
    asked = session("a", slots(cpu=2, mem="1g", cuda_device=1))
    kernel = replace(asked.kernels[0], architecture="x86_64")
    trial = attempt(group(machine), replace(asked, kernels=(kernel,)))
    assert trial.outcome is Outcome.NEVER
    assert trial.exclusions == {why: ["i-1"]}
    far = replace(asked, kernels=(replace(kernel, needs=frozenset({"runtime class kata"})),))
    assert attempt(group(agent("i-1", cuda=2)), far).exclusions == {Exclusion.FEATURE: ["i-1"]}


def test_a_reserved_agent_is_no_room_for_others() -> None:
    head = session("head", slots(cpu=4, mem="1g"), age_s=9)
    snapshot = group(holding(agent("i-1"), cpu=2), pending=(head,))
    trial = attempt(snapshot, session("small", slots(cpu=1, mem="1g")))
    assert trial.skip is not None
    assert trial.skip.reason is SkipReason.BEHIND_ANOTHER
    assert trial.exclusions == {Exclusion.RESERVED: ["i-1"]}
    assert trial.reserved_for(head.session_id) == ["i-1"]
    assert not trial.largest_free.nonzero(), "what is kept for others is not free"
    assert not trial.proposals
    watched = TrialScheduler().run(snapshot, Policy(), now=NOW, rng=random.Random(1), watched=[head.session_id])
    assert watched.exclusions == {Exclusion.BUSY: ["i-1"]}


def test_devices_that_are_free_but_apart_are_told_from_busy_ones() -> None:
    shares = agent("i-1", shares=["0.5", "0.5"])
    trial = attempt(group(shares), session("a", slots(cpu=1, mem="1g", cuda_shares="1")))
    assert trial.outcome is Outcome.NOW
    halves = holding(holding(agent("i-1", shares=["1", "1"]), cuda_shares="0.6"), cuda_shares="0.6")
    apart = attempt(group(halves), session("a", slots(cpu=1, mem="1g", cuda_shares="0.8")))
    assert apart.outcome is Outcome.WAITS


def test_smaller_requests_are_proposed() -> None:
    machines = holding(agent("i-1", cpu=8, cuda=4), cuda_device=2), agent("i-2", cpu=2, cuda=3)
    asked = session("a", slots(cpu=4, mem="1g", cuda_device=4))
    trial = attempt(group(*machines), asked)
    assert trial.skip is not None
    assert trial.skip.reason is SkipReason.INSUFFICIENT_RESOURCE
    assert trial.proposals[0] == Proposal(slots=slots(cpu=4, mem="1g", cuda_device=2), kernels=1)
    for proposal in trial.proposals:
        smaller = session("b", proposal.slots)
        assert attempt(group(*machines), smaller).outcome is Outcome.NOW


def test_of_alternatives_with_amounts_smaller_ones_are_proposed_in_turn() -> None:
    requests = ('model == "H100" && amount("cuda.device", 4)', 'model == "T4" || model == "A100"')
    requests = (requests[0], f'({requests[1]}) && amount("cuda.device", 8)')
    snapshot = group(gpus("i-1", "H100", "H100"), gpus("i-2", "T4", "T4", "A100"))
    asked = replace(session("a", slots(cpu=1, mem="1g", cuda_device=8)), device_requests=requests)
    trial = attempt(snapshot, asked)
    assert trial.outcome is not Outcome.NOW
    assert [(proposal.slots, proposal.device_request) for proposal in trial.proposals[:2]] == [
        (slots(cpu=1, mem="1g", cuda_device=2), 'model == "H100" && amount("cuda.device", 2)'),
        (slots(cpu=1, mem="1g", cuda_device=3), '(model == "T4" || model == "A100") && amount("cuda.device", 3)'),
    ]
    for proposal in trial.proposals:
        smaller = replace(session("b", proposal.slots), device_requests=(proposal.device_request,))
        assert attempt(snapshot, smaller).outcome is Outcome.NOW
    plain = replace(session("c", slots(cpu=1, mem="1g", cuda_device=4)), device_requests=('model == "H100"',))
    assert {proposal.device_request for proposal in attempt(snapshot, plain).proposals} == {""}


@pytest.mark.parametrize("multi", [True, False])
def test_a_smaller_cluster_is_proposed(multi: bool) -> None:
    machines = (agent("i-1", cpu=4), agent("i-2", cpu=4))
    trial = attempt(group(*machines), session("a", *[slots(cpu=2, mem="1g")] * 5, multi=multi))
    assert Proposal(slots=slots(cpu=2, mem="1g"), kernels=4 if multi else 2) in trial.proposals
    uneven = session("b", slots(cpu=4, mem="1g"), slots(cpu=3, mem="1g"))
    assert not attempt(group(*machines), uneven).proposals


def test_quotas_and_dependencies_hold_a_trial_back() -> None:
    quota = Quota(label="your keypair", limit=slots(cpu=2), used=slots(cpu=2))
    limited = session("a", slots(cpu=1, mem="1g"), quotas=("keypair:k",))
    trial = attempt(group(agent("i-1"), quotas={"keypair:k": quota}), limited)
    assert trial.skip is not None
    assert (trial.outcome, trial.skip.reason) == (Outcome.WAITS, SkipReason.QUOTA_EXCEEDED)
    failed = Dependency(session_id=limited.session_id, name="first", status="ERROR")  # type: ignore[arg-type]  # a word
    assert attempt(group(agent("i-1")), replace(limited, quotas=(), dependencies=(failed,))).skip is not None


def test_failed_devices_are_no_reason_to_wait() -> None:
    sick = failing(agent("i-1", cuda=1), "cuda", _0="Xid 79")
    trial = attempt(group(sick), session("a", slots(cpu=1, mem="1g", cuda_device=1)))
    assert trial.skip is not None
    assert (trial.outcome, trial.skip.reason) == (Outcome.NEVER, SkipReason.DEVICES_FAILED)
    assert outcome_of(SkipReason.PREEMPTING) is Outcome.WAITS


def tainted(view: AgentView, key: str) -> AgentView:
    """The agent with a tainted GPU 1."""
    taint = (VariantProperty.parse(f"taint::key::{key}"),)
    plugins = tuple(
        replace(p, devices=tuple(replace(d, variant_properties=taint) if d.device_id == "1" else d for d in p.devices))
        if p.name == "cuda"
        else p
        for p in view.plugins
    )
    return replace(view, plugins=plugins)


def test_what_is_withheld_is_named_beside_a_lack() -> None:
    cordoned = failing(tainted(agent("i-1", cuda=3), "burn-in"), "cuda", _0="cordoned: fan replaced on Friday")
    snapshot = group(holding(cordoned, cpu=4), agent("i-2", cuda=2, is_schedulable=False))
    trial = attempt(snapshot, session("a", slots(cpu=1, mem="1g", cuda_device=1)))
    assert trial.skip is not None
    assert trial.skip.reason is SkipReason.INSUFFICIENT_RESOURCE
    assert [(each.agent_id, each.device_id, each.is_tainted, each.reason) for each in trial.withheld] == [
        ("i-1", "0", False, "cordoned: fan replaced on Friday"),
        ("i-1", "1", True, "burn-in"),
    ]
    assert not attempt(snapshot, session("b", slots(cpu=1, mem="1g"))).withheld, "it asks for no such device"


def test_a_withheld_device_concerns_only_who_could_be_given_it() -> None:
    snapshot = group(failing(tainted(agent("i-1", cuda=3), "burn-in"), "cuda", _0="reset is under way"))

    def named(*device_requests: str) -> list[str]:
        who = replace(session("a", slots(cuda_device=3)), device_requests=device_requests)
        return [each.device_id for each in attempt(snapshot, who).withheld]

    assert named('tolerates("burn-in")') == named('tolerates("*")') == ["0"]
    assert named('id == "1"') == ["1"]
    assert named('id == "2"') == []
    assert named('id == "0"', 'id == "1"', "has(id)") == ["0", "1"]
    assert named() == ["0", "1"]


def test_only_the_first_withheld_devices_are_named() -> None:
    reasons = {f"_{number}": "too hot" for number in range(40)}
    snapshot = group(failing(agent("i-1", cuda=40), "cuda", **reasons))
    assert len(attempt(snapshot, session("a", slots(cuda_device=1))).withheld) == MAX_WITHHELD


def test_a_scheduler_is_renewed_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ai.backend.core.scheduling.trial._RENEW_AFTER", 2)
    trials, snapshot = TrialScheduler(), group(agent("i-1"))
    for number in range(4):
        asked = session(f"s-{number}", slots(cpu=4, mem="1g"))
        trial = trials.run(snapshot, Policy(), now=NOW, rng=random.Random(1), tried=(asked,))
        assert trial.outcome is Outcome.NOW
