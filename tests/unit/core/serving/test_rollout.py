"""Roll-outs against a model of the world: replicas start, become ready, drain and fail as drawn by hypothesis."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ai.backend.common.serving import FAILURES, ReplicaStatus, ServingReason
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.endpoint import ReplicaTrigger, Served, step_replica
from ai.backend.core.serving.model import (
    Abort,
    CanaryStep,
    EnterStep,
    FailedStarts,
    FinishRollback,
    Guard,
    Plan,
    Promote,
    Replica,
    RevisionSample,
    RolloutKind,
    RolloutPolicy,
    RolloutSnapshot,
    StartReplicas,
    StepReplica,
)
from ai.backend.core.serving.rollout import plan_rollout

R = ReplicaStatus
OLD, NEW, OLDER = UUID(int=1), UUID(int=2), UUID(int=3)
STEP_S = 5.0


@dataclass
class World:
    """Carries plans out. ``bad``: revisions whose replicas fail before they are ready."""

    snapshot: RolloutSnapshot
    policy: RolloutPolicy
    bad: frozenset[UUID] = frozenset()
    now: float = 1000.0
    number: int = 100
    outcome: str = ""
    reasons: dict[UUID, ServingReason] = field(default_factory=dict)
    plans: list[Plan] = field(default_factory=list)

    def count(self, revision: UUID, *statuses: ReplicaStatus) -> int:
        return sum(each.revision == revision and each.status in statuses for each in self.snapshot.replicas)

    @property
    def ready(self) -> int:
        return sum(each.status is R.READY for each in self.snapshot.replicas)

    def act(self, *, twice: bool = False) -> Plan:
        plan = plan_rollout(self.snapshot, self.policy, self.now)
        assert plan == plan_rollout(self.snapshot, self.policy, self.now)
        self.plans.append(plan)
        for action in plan.actions:
            self._carry_out(action)
            if twice and isinstance(action, StepReplica):
                self._carry_out(action)
        return plan

    def _carry_out(self, action: object) -> None:
        snapshot = self.snapshot
        match action:
            case StartReplicas(revision, count):
                assert count > 0
                new = [self._made(revision) for _ in range(count)]
                self.snapshot = replace(snapshot, replicas=(*snapshot.replicas, *new))
            case StepReplica(replica_id, trigger, reason):
                self._step(replica_id, trigger, reason)
            case EnterStep(step):
                self.snapshot = replace(snapshot, step=step, step_since=self.now)
            case Promote(revision):
                self.outcome = "promoted"
                self.snapshot = replace(snapshot, active=revision, target=None)
            case Abort(_, reason, detail):
                assert detail
                self.snapshot = replace(snapshot, abort_reason=reason)
            case FinishRollback():
                self.outcome = "rolled back"
                self.snapshot = replace(snapshot, target=None, abort_reason=None)

    def _made(self, revision: UUID) -> Replica:
        self.number += 1
        return Replica(id=UUID(int=self.number), revision=revision, status=R.PROVISIONING, since=self.now, in_flight=0)

    def _step(self, replica_id: UUID, trigger: ReplicaTrigger, reason: ServingReason | None = None) -> None:
        kept: list[Replica] = []
        for each in self.snapshot.replicas:
            if each.id != replica_id:
                kept.append(each)
                continue
            before = Served(each.status, self.reasons.get(each.id, ServingReason.CREATED))
            state, path, _ = step_replica(before, trigger, reason=reason)
            self.reasons[each.id] = state.reason
            if state.status is R.TERMINATED:
                if state.reason in FAILURES:
                    self._count_failure(each.revision)
            else:
                kept.append(replace(each, status=state.status, since=self.now if path else each.since))
            if state.status is R.READY and path:
                failures = {k: v for k, v in self.snapshot.failures.items() if k != each.revision}
                self.snapshot = replace(self.snapshot, failures=failures)
        self.snapshot = replace(self.snapshot, replicas=tuple(kept))

    def _count_failure(self, revision: UUID) -> None:
        failed = self.snapshot.failures.get(revision, FailedStarts(count=0, last_at=0.0))
        failed = FailedStarts(count=failed.count + 1, last_at=self.now)
        self.snapshot = replace(self.snapshot, failures={**self.snapshot.failures, revision: failed})

    def pass_time(self, lucky: set[int]) -> None:
        """Moves the replicas whose number is in ``lucky`` one step on."""
        self.now += STEP_S
        for each in self.snapshot.replicas:
            if lucky and each.id.int % 4 not in lucky:
                continue
            if each.status is R.PROVISIONING:
                ends = each.revision in self.bad
                self._step(each.id, ReplicaTrigger.SESSION_ENDED if ends else ReplicaTrigger.SESSION_STARTED)
            elif each.status is R.WARMING:
                self._step(each.id, ReplicaTrigger.PROBES_PASSED)
            elif each.status is R.TERMINATING:
                self._step(each.id, ReplicaTrigger.SESSION_ENDED)

    def run(self, rounds: list[set[int]], *, twice: bool = False) -> None:
        for lucky in rounds:
            self.act(twice=twice)
            self.pass_time(lucky)
        for _ in range(200):
            self.act(twice=twice)
            self.pass_time(set())


def replicas_of(revision: UUID, count: int, status: ReplicaStatus = R.READY, first: int = 1) -> tuple[Replica, ...]:
    return tuple(
        Replica(id=UUID(int=first + n), revision=revision, status=status, since=0.0, in_flight=0) for n in range(count)
    )


def rolling(desired: int, **other: object) -> RolloutSnapshot:
    base = RolloutSnapshot(
        desired=desired, active=OLD, target=NEW, replicas=replicas_of(OLD, desired), started_at=1000.0, step_since=1000
    )
    return replace(base, **other)  # type: ignore[arg-type]  # names of fields with any values


rounds = st.lists(st.sets(st.integers(0, 3), min_size=1), max_size=30)
kinds = st.sampled_from(list(RolloutKind))


@given(st.integers(1, 6), st.integers(0, 3), st.integers(0, 3), rounds, st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_rolling_update_keeps_its_bounds_and_ends(
    desired: int, surge: int, unavailable: int, rounds: list[set[int]], twice: bool
) -> None:
    policy = RolloutPolicy(max_surge=surge, max_unavailable=unavailable, quiet_s=0.0)
    world = World(rolling(desired), policy)
    limit = desired + (surge if surge + unavailable else 1)
    for lucky in [*rounds, *([set()] * 200)]:
        plan = world.act(twice=twice)
        assert world.ready >= min(desired, max(0, desired - unavailable)), "too few are ready"
        assert len(world.snapshot.replicas) <= limit, "too many hold resources"
        if world.ready:
            assert sum(plan.weights.values()) > 0, "somebody gets the requests"
        world.pass_time(lucky)
    assert world.outcome == "promoted"
    assert world.count(NEW, R.READY) == desired == len(world.snapshot.replicas)


@given(kinds, st.integers(1, 5), rounds)
@settings(max_examples=100, deadline=None)
def test_a_revision_that_never_starts_is_rolled_back_without_a_gap(
    kind: RolloutKind, desired: int, rounds: list[set[int]]
) -> None:
    policy = RolloutPolicy(kind=kind, first_backoff_s=10.0, quiet_s=0.0)
    world = World(rolling(desired), policy, bad=frozenset((NEW,)))
    for lucky in [*rounds, *([set()] * 200)]:
        plan = world.act()
        assert world.ready == desired
        assert NEW not in plan.weights
        world.pass_time(lucky)
    assert world.outcome == "rolled back"
    assert world.count(OLD, R.READY) == desired == len(world.snapshot.replicas)
    starts = [a for p in world.plans for a in p.actions if isinstance(a, StartReplicas) and a.revision == NEW]
    assert sum(a.count for a in starts) <= desired + policy.max_failures


@given(st.sampled_from([RolloutKind.BLUE_GREEN, RolloutKind.CANARY]), st.integers(1, 5), rounds)
@settings(max_examples=60, deadline=None)
def test_the_old_revision_stays_whole_until_the_promotion(
    kind: RolloutKind, desired: int, rounds: list[set[int]]
) -> None:
    policy = RolloutPolicy(kind=kind, quiet_s=0.0, steps=(CanaryStep(weight=10, hold_s=20), CanaryStep(weight=50)))
    world = World(rolling(desired), policy)
    shares: list[float] = []
    for lucky in [*rounds, *([set()] * 200)]:
        plan = world.act()
        if world.outcome != "promoted":
            assert world.count(OLD, R.READY) == desired
        shares.append(plan.weights.get(NEW, 0.0) / sum(plan.weights.values()))
        world.pass_time(lucky)
    assert world.outcome == "promoted"
    assert shares == sorted(shares), "the share of the new revision only grows"
    expected = {0.0, 1.0} if kind is RolloutKind.BLUE_GREEN else {0.0, 0.1, 0.5, 1.0}
    assert set(shares) == expected
    assert world.count(NEW, R.READY) == desired == len(world.snapshot.replicas)


@pytest.mark.parametrize("kind", list(RolloutKind))
def test_a_guard_rolls_back_at_once(kind: RolloutKind) -> None:
    new = replicas_of(NEW, 1, first=10)
    samples = {OLD: RevisionSample(requests=100, errors=1), NEW: RevisionSample(requests=30, errors=9)}
    snapshot = rolling(3, replicas=(*replicas_of(OLD, 3), *new), samples=samples)
    plan = plan_rollout(snapshot, RolloutPolicy(kind=kind), 1001.0)
    assert plan.actions[0] == Abort(NEW, ServingReason.GUARD_TRIPPED, "9 of 30 requests failed, more than 5.0%")
    assert plan.weights == {OLD: 3.0}
    assert StepReplica(new[0].id, ReplicaTrigger.END_REQUESTED, ServingReason.GUARD_TRIPPED) in plan.actions


@pytest.mark.parametrize(
    ("guard", "new", "old", "is_broken"),
    [
        (Guard(), RevisionSample(requests=19, errors=19), RevisionSample(), False),
        (Guard(), RevisionSample(requests=20, errors=2), RevisionSample(), True),
        (Guard(), RevisionSample(requests=20, errors=2), RevisionSample(requests=99, errors=20), False),
        (Guard(max_ttft_ratio=2.0), RevisionSample(requests=20, ttft_p90_s=3), RevisionSample(requests=20), False),
        (
            Guard(max_ttft_ratio=2.0),
            RevisionSample(requests=20, ttft_p90_s=3),
            RevisionSample(requests=20, ttft_p90_s=1),
            True,
        ),
        (
            Guard(min_token_rate_ratio=0.5),
            RevisionSample(requests=20, tokens_per_s=3),
            RevisionSample(requests=20, tokens_per_s=10),
            True,
        ),
    ],
)
def test_guards(guard: Guard, new: RevisionSample, old: RevisionSample, is_broken: bool) -> None:
    plan = plan_rollout(rolling(1, samples={OLD: old, NEW: new}), RolloutPolicy(guard=guard), 1001.0)
    assert any(isinstance(action, Abort) for action in plan.actions) == is_broken


def test_a_late_roll_out_is_rolled_back() -> None:
    policy = RolloutPolicy(deadline_s=100.0)
    assert plan_rollout(rolling(1), policy, 1099.0).wake_at == 1100.0
    [abort] = [a for a in plan_rollout(rolling(1), policy, 1100.0).actions if isinstance(a, Abort)]
    assert abort.reason is ServingReason.DEADLINE_PASSED


def test_a_step_without_end_waits_for_a_user() -> None:
    policy = RolloutPolicy(kind=RolloutKind.CANARY, steps=(CanaryStep(weight=20, hold_s=None),))
    snapshot = rolling(1, replicas=(*replicas_of(OLD, 1), *replicas_of(NEW, 1, first=10)))
    held = plan_rollout(snapshot, policy, 2000.0)
    assert (held.actions, dict(held.weights)) == ((), {OLD: 80.0, NEW: 20.0})
    released = plan_rollout(replace(snapshot, step=1, step_since=2000.0), policy, 2000.0)
    assert released.actions == (Promote(NEW),)


def test_the_first_revision_is_promoted_without_a_guard_and_fails_after_its_starts() -> None:
    snapshot = RolloutSnapshot(desired=2, target=NEW, replicas=replicas_of(NEW, 2), samples={NEW: RevisionSample()})
    assert plan_rollout(snapshot, RolloutPolicy(), 1.0).actions == (Promote(NEW),)
    world = World(RolloutSnapshot(desired=2, target=NEW, started_at=1000), RolloutPolicy(), bad=frozenset((NEW,)))
    world.run([])
    assert (world.outcome, world.snapshot.replicas) == ("rolled back", ())


def test_an_endpoint_at_zero_takes_the_new_revision_without_a_replica() -> None:
    plan = plan_rollout(rolling(0), RolloutPolicy(), 1001.0)
    assert plan.actions == (Promote(NEW),)
    assert plan.weights == {}


@given(st.integers(0, 5), st.integers(0, 5), st.lists(st.integers(0, 9), min_size=5, max_size=5))
def test_scaling_ends_those_with_the_least_work(before: int, desired: int, work: list[int]) -> None:
    replicas = tuple(
        replace(each, in_flight_tokens=tokens) for each, tokens in zip(replicas_of(OLD, before), work, strict=False)
    )
    snapshot = RolloutSnapshot(desired=desired, active=OLD, replicas=replicas)
    plan = plan_rollout(snapshot, RolloutPolicy(), 1.0)
    ended = [a.replica for a in plan.actions if isinstance(a, StepReplica)]
    started = sum(a.count for a in plan.actions if isinstance(a, StartReplicas))
    assert (len(ended), started) == (max(0, before - desired), max(0, desired - before))
    tokens = {each.id: each.in_flight_tokens for each in replicas}
    kept = [number for replica, number in tokens.items() if replica not in ended]
    assert all(tokens[replica] <= min(kept, default=99) for replica in ended)


def test_what_ends_drains_first_and_not_for_ever() -> None:
    [draining] = replicas_of(OLD, 1, R.DRAINING)
    policy = RolloutPolicy(drain_s=600.0, quiet_s=3.0)

    def plan(now: float, in_flight: int | None) -> Plan:
        replicas = (replace(draining, in_flight=in_flight),)
        return plan_rollout(RolloutSnapshot(desired=0, active=OLD, replicas=replicas), policy, now)

    assert plan(2.0, 0).actions == ()
    assert plan(2.0, 0).wake_at == 3.0
    assert plan(3.0, 0).actions == (StepReplica(draining.id, ReplicaTrigger.DRAINED, ServingReason.DRAINED),)
    for in_flight in (1, None):
        assert plan(599.0, in_flight).actions == ()
        [step] = plan(600.0, in_flight).actions
        assert isinstance(step, StepReplica)
        assert step.trigger is ReplicaTrigger.DRAIN_TIMED_OUT


def test_failed_replicas_of_the_served_revision_are_replaced_with_growing_delays() -> None:
    def starts(count: int, now: float) -> list[int]:
        failures = {OLD: FailedStarts(count=count, last_at=100.0)}
        snapshot = RolloutSnapshot(desired=4, active=OLD, replicas=replicas_of(OLD, 1), failures=failures)
        plan = plan_rollout(snapshot, RolloutPolicy(first_backoff_s=5, max_backoff_s=60), now)
        return [a.count for a in plan.actions if isinstance(a, StartReplicas)]

    assert (starts(1, 104.9), starts(1, 105.0)) == ([], [1])
    assert (starts(3, 119.9), starts(3, 120.0)) == ([], [1])
    assert (starts(50, 159.9), starts(50, 160.0)) == ([], [1])


def test_unhealthy_and_slow_replicas_are_replaced() -> None:
    replicas = (*replicas_of(OLD, 1, R.UNHEALTHY), *replicas_of(OLD, 1, R.WARMING, first=9))
    snapshot = RolloutSnapshot(desired=2, active=OLD, replicas=replicas)
    policy = RolloutPolicy(unhealthy_s=60.0, start_timeout_s=90.0)
    assert plan_rollout(snapshot, policy, 59.0).wake_at == 60.0
    plan = plan_rollout(snapshot, policy, 90.0)
    assert [a.trigger for a in plan.actions if isinstance(a, StepReplica)] == [
        ReplicaTrigger.UNHEALTHY_TOO_LONG,
        ReplicaTrigger.START_TIMED_OUT,
    ]
    assert StartReplicas(OLD, 2) in plan.actions


def test_everything_ends_with_its_endpoint_and_strangers_end_always() -> None:
    replicas = (*replicas_of(OLD, 1), *replicas_of(OLDER, 1, first=9))
    snapshot = RolloutSnapshot(desired=1, active=OLD, replicas=replicas)
    [step] = plan_rollout(snapshot, RolloutPolicy(), 1.0).actions
    assert step == StepReplica(replicas[1].id, ReplicaTrigger.END_REQUESTED, ServingReason.SUPERSEDED)
    plan = plan_rollout(replace(snapshot, is_destroying=True), RolloutPolicy(), 1.0)
    assert (len(plan.actions), plan.weights) == (2, {})
