"""Plans the replicas of an endpoint: their number by revision, which replicas drain, and the request shares (serving
anchors 6 and 8).

The plan is level-triggered: it follows from the snapshot alone, and a plan that was carried out in part, or twice, is
followed by one that does the rest. Replicas whose revision is neither active nor target are ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from ai.backend.common.serving import ReplicaStatus, ServingReason
from ai.backend.core.lifecycle.endpoint import ReplicaTrigger
from ai.backend.core.serving.model import (
    Abort,
    Action,
    EnterStep,
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

R = ReplicaStatus
_ALIVE = frozenset((R.PROVISIONING, R.WARMING, R.READY, R.UNHEALTHY))
_STARTING = frozenset((R.PROVISIONING, R.WARMING))
_END_ORDER = (R.PROVISIONING, R.WARMING, R.UNHEALTHY, R.READY)


def plan_rollout(snapshot: RolloutSnapshot, policy: RolloutPolicy, now: float) -> Plan:
    """Plans the roll-out actions that are due now. Deterministic.

    While nothing fails by itself, at least ``desired - max_unavailable`` replicas are ready during a roll-out that
    began with ``desired`` ones; a rolling one holds the resources of ``desired + max_surge`` replicas at most.
    """
    planner = _Planner(snapshot, policy, now)
    planner.plan()
    actions = tuple(planner.actions)
    weights = {} if snapshot.is_destroying else planner.weights
    return Plan(actions=actions, weights=weights, explanation=planner.explanation, wake_at=planner.wake_at)


@dataclass(slots=True)
class _Planner:
    snapshot: RolloutSnapshot
    policy: RolloutPolicy
    now: float
    actions: list[Action] = field(default_factory=list)
    weights: Mapping[UUID, float] = field(default_factory=dict)
    explanation: str = ""
    wake_at: float | None = None
    _stepped: set[UUID] = field(default_factory=set)

    def plan(self) -> None:
        snapshot = self.snapshot
        self._end_drains_and_timeouts()
        if snapshot.is_destroying:
            self._end(snapshot.replicas, ServingReason.ENDPOINT_DESTROYED)
            self.explanation = "the endpoint is being destroyed"
            return
        others = [each for each in snapshot.replicas if each.revision not in (snapshot.active, snapshot.target)]
        self._end(others, ServingReason.SUPERSEDED)
        target = snapshot.target
        if target is None or target == snapshot.active:
            self._keep()
        elif snapshot.abort_reason is not None:
            self._roll_back(target, snapshot.abort_reason)
        elif (abort := self._abort_reason(target)) is not None:
            self.actions.append(abort)
            self.explanation = abort.detail
            self._roll_back(target, abort.reason)
        else:
            self._roll_out(target)

    # What is due by time

    def _end_drains_and_timeouts(self) -> None:
        policy = self.policy
        for replica in self.snapshot.replicas:
            if replica.status is R.DRAINING:
                if replica.in_flight == 0:
                    trigger, reason, delay_s = ReplicaTrigger.DRAINED, ServingReason.DRAINED, policy.quiet_s
                else:
                    trigger, reason = ReplicaTrigger.DRAIN_TIMED_OUT, ServingReason.DRAIN_TIMED_OUT
                    delay_s = policy.drain_s
            elif replica.status in _STARTING:
                trigger, reason = ReplicaTrigger.START_TIMED_OUT, ServingReason.START_TIMED_OUT
                delay_s = policy.start_timeout_s
            elif replica.status is R.UNHEALTHY:
                trigger, reason = ReplicaTrigger.UNHEALTHY_TOO_LONG, ServingReason.UNHEALTHY_TOO_LONG
                delay_s = policy.unhealthy_s
            else:
                continue
            if self._is_due(replica.since + delay_s):
                self.actions.append(StepReplica(replica.id, trigger, reason))
                self._stepped.add(replica.id)

    def _is_due(self, moment: float) -> bool:
        """Returns True if a moment has come. Otherwise the moment is noted as the time of the next plan."""
        if moment <= self.now:
            return True
        self.wake_at = moment if self.wake_at is None else min(self.wake_at, moment)
        return False

    # Counting

    def _alive(self, revision: UUID | None) -> list[Replica]:
        return [
            each
            for each in self.snapshot.replicas
            if each.revision == revision and each.status in _ALIVE and each.id not in self._stepped
        ]

    def _ready(self, revision: UUID | None) -> list[Replica]:
        return [each for each in self._alive(revision) if each.status is R.READY]

    @property
    def _holding(self) -> int:
        """Returns the replicas that hold resources."""
        return sum(each.status is not R.TERMINATED for each in self.snapshot.replicas)

    # Starting and ending

    def _start(self, revision: UUID, count: int) -> None:
        """Starts replicas of a revision.

        After a failure they come one by one, and each waits twice as long as the one before.
        """
        failed = self.snapshot.failures.get(revision)
        if count <= 0:
            return
        if failed is not None and failed.count > 0:
            starting = any(each.status in _STARTING for each in self._alive(revision))
            delay_s = min(self.policy.first_backoff_s * 2.0 ** min(failed.count - 1, 30), self.policy.max_backoff_s)
            if starting or not self._is_due(failed.last_at + delay_s):
                return
            count = 1
        self.actions.append(StartReplicas(revision, count))

    def _end(self, replicas: Iterable[Replica], reason: ServingReason) -> None:
        for replica in replicas:
            if replica.status in _ALIVE and replica.id not in self._stepped:
                self.actions.append(StepReplica(replica.id, ReplicaTrigger.END_REQUESTED, reason))
                self._stepped.add(replica.id)

    def _end_surplus(self, revision: UUID, keep: int, reason: ServingReason) -> None:
        alive = sorted(self._alive(revision), key=_end_key)
        self._end(alive[: max(0, len(alive) - keep)], reason)

    # Steady state and rolling back

    def _keep(self) -> None:
        snapshot = self.snapshot
        if snapshot.active is None:
            self.explanation = "no revision is to be served"
            return
        self._end_surplus(snapshot.active, snapshot.desired, ServingReason.SCALED_DOWN)
        self._start(snapshot.active, snapshot.desired - len(self._alive(snapshot.active)))
        self.weights = {snapshot.active: 1.0} if self._ready(snapshot.active) else {}
        self.explanation = f"{len(self._ready(snapshot.active))} of {snapshot.desired} replicas are ready"

    def _roll_back(self, target: UUID, reason: ServingReason) -> None:
        """Brings the active revision back to the desired number of replicas.

        What was ready of the target serves until that is so, unless it is the target's own answers that were bad.
        """
        active, desired = self.snapshot.active, self.snapshot.desired
        replicas = [each for each in self.snapshot.replicas if each.revision == target]
        if not any(each.status is not R.TERMINATED for each in replicas):
            self.actions.append(FinishRollback(target))
        ready_old = len(self._ready(active)) if active is not None else 0
        if active is not None:
            self._end_surplus(active, desired, ServingReason.SCALED_DOWN)
            self._start(active, desired - len(self._alive(active)))
        is_bad = reason is ServingReason.GUARD_TRIPPED and ready_old > 0
        keep = 0 if active is None or is_bad else max(0, min(desired - ready_old, len(self._ready(target))))
        self._end_surplus(target, keep, reason)
        self._weigh_by_number(active, target if keep else None)
        self.explanation = self.explanation or f"rolled back: {reason}"

    def _weigh_by_number(self, active: UUID | None, target: UUID | None) -> None:
        numbers = {each: float(len(self._ready(each))) for each in (active, target) if each is not None}
        self.weights = {revision: number for revision, number in numbers.items() if number}

    def _abort_reason(self, target: UUID) -> Abort | None:
        snapshot, policy = self.snapshot, self.policy
        failed = snapshot.failures.get(target)
        if failed is not None and failed.count >= policy.max_failures:
            text = f"{failed.count} replicas failed one after the other"
            return Abort(target, ServingReason.START_FAILED, text)
        if snapshot.active is None:
            return None
        if policy.guard is not None and (
            broken := check_guard(policy.guard, snapshot.samples, snapshot.active, target)
        ):
            return Abort(target, ServingReason.GUARD_TRIPPED, broken)
        if self._is_due(snapshot.started_at + policy.deadline_s):
            return Abort(target, ServingReason.DEADLINE_PASSED, f"it took more than {policy.deadline_s:g} s")
        return None

    # Rolling out

    def _roll_out(self, target: UUID) -> None:
        snapshot = self.snapshot
        if snapshot.active is None:
            self._replace_none(target)
        elif snapshot.desired == 0:
            self._end(self._alive(snapshot.active), ServingReason.SUPERSEDED)
            self._promote(target, "no replica is wanted now")
        elif self.policy.kind is RolloutKind.ROLLING:
            self._roll(snapshot.active, target)
        elif self.policy.kind is RolloutKind.BLUE_GREEN:
            self._turn(snapshot.active, target)
        else:
            self._canary(snapshot.active, target)

    def _promote(self, target: UUID, text: str) -> None:
        self.actions.append(Promote(target))
        self.weights = {target: 1.0} if self._ready(target) else {}
        self.explanation = f"promoted: {text}"

    def _replace_none(self, target: UUID) -> None:
        desired = self.snapshot.desired
        self._end_surplus(target, desired, ServingReason.SCALED_DOWN)
        self._start(target, desired - len(self._alive(target)))
        ready = len(self._ready(target))
        if ready >= min(desired, max(1, desired - self.policy.max_unavailable)):
            self._promote(target, f"{ready} of {desired} replicas are ready")
        else:
            self.weights = {target: 1.0} if ready else {}
            self.explanation = f"{ready} of {desired} replicas of the first revision are ready"

    def _roll(self, active: UUID, target: UUID) -> None:
        snapshot, desired = self.snapshot, self.snapshot.desired
        surge, unavailable = self.policy.max_surge, self.policy.max_unavailable
        if surge + unavailable <= 0:
            surge = 1
        ready_new = len(self._ready(target))
        if ready_new >= desired:
            self._end_surplus(target, desired, ServingReason.SCALED_DOWN)
            self._promote(target, f"{ready_new} of {desired} replicas are ready")
            return
        self._end_surplus(target, desired, ServingReason.SCALED_DOWN)
        room = desired + surge - self._holding
        self._start(target, min(desired - len(self._alive(target)), room))
        old = sorted(self._alive(active), key=_end_key)
        idle = [each for each in old if each.status is not R.READY]
        self._end(idle, ServingReason.SUPERSEDED)
        ready = [each for each in old if each.status is R.READY]
        spare = len(ready) + ready_new - max(0, desired - unavailable)
        self._end(ready[: max(0, spare)], ServingReason.SUPERSEDED)
        self._weigh_by_number(active, target)
        self.explanation = f"{ready_new} of {desired} replicas of the new revision are ready"
        if snapshot.failures.get(target):
            self.explanation += ", after failed starts"

    def _keep_old(self, active: UUID) -> None:
        self._end_surplus(active, self.snapshot.desired, ServingReason.SCALED_DOWN)
        self._start(active, self.snapshot.desired - len(self._alive(active)))

    def _turn(self, active: UUID, target: UUID) -> None:
        desired = self.snapshot.desired
        self._keep_old(active)
        self._end_surplus(target, desired, ServingReason.SCALED_DOWN)
        self._start(target, desired - len(self._alive(target)))
        if self.snapshot.step:
            self._watch(active, target)
            return
        ready_since = self._ready_since(target, desired)
        if ready_since is not None and self._is_due(ready_since + self.policy.soak_s):
            if self.policy.guard is None or self.policy.watch_s <= 0:
                self._promote(target, f"all {desired} replicas are ready")
                return
            self.actions.append(EnterStep(1))
            self.weights = {target: 1.0}
            self.explanation = "all requests go to the new revision, which is watched"
            return
        self.weights = {active: 1.0} if self._ready(active) else {}
        self.explanation = f"{len(self._ready(target))} of {desired} replicas of the new revision are ready"

    def _watch(self, active: UUID, target: UUID) -> None:
        """Keeps the old replicas, which get no requests, until the guard has judged the new replicas long enough."""
        snapshot, watch_s = self.snapshot, self.policy.watch_s
        if snapshot.step > 1 or self._is_due(snapshot.step_since + watch_s):
            self._promote(target, f"it kept its guard for {watch_s:g} s" if snapshot.step == 1 else "as requested")
            return
        serving = target if self._ready(target) else active
        self.weights = {serving: 1.0} if self._ready(serving) else {}
        self.explanation = f"all requests go to the new revision, which is watched for {watch_s:g} s"

    def _canary(self, active: UUID, target: UUID) -> None:
        snapshot, steps, desired = self.snapshot, self.policy.steps, self.snapshot.desired
        self._keep_old(active)
        number = min(snapshot.step, len(steps))
        is_last = number == len(steps)
        needed = desired if is_last else max(1, min(desired, math.ceil(desired * steps[number].weight / 100.0)))
        self._end_surplus(target, needed, ServingReason.SCALED_DOWN)
        self._start(target, needed - len(self._alive(target)))
        ready_since = self._ready_since(target, needed)
        share = 100.0 if is_last else min(100.0, max(0.0, steps[number].weight))
        if ready_since is None:
            share = min(100.0, max(0.0, steps[number - 1].weight)) if number and self._ready(target) else 0.0
            self.explanation = f"step {number + 1}: {len(self._ready(target))} of {needed} new replicas are ready"
        elif is_last:
            self._promote(target, "all steps are done")
            return
        else:
            self.explanation = f"step {number + 1} of {len(steps)}: {share:g} per cent of the requests"
            hold_s, begun = steps[number].hold_s, max(snapshot.step_since, ready_since)
            if hold_s is not None and self._is_due(begun + hold_s):
                self.actions.append(EnterStep(number + 1))
        shares = {active: 100.0 - share if self._ready(active) else 0.0, target: share if self._ready(target) else 0.0}
        self.weights = {revision: weight for revision, weight in shares.items() if weight > 0}
        if not self.weights and self._ready(target):
            self.weights = {target: 1.0}

    def _ready_since(self, revision: UUID, count: int) -> float | None:
        """Returns since when a revision has the given number of ready replicas. Returns None if it has fewer."""
        moments = sorted(each.since for each in self._ready(revision))
        return moments[count - 1] if 0 < count <= len(moments) else None


def _end_key(replica: Replica) -> tuple[int, int, float, str]:
    """Returns the sort key by which replicas are ended: idle ones first, then those with the least work, then the
    youngest."""
    return _END_ORDER.index(replica.status), replica.in_flight_tokens, -replica.since, replica.id.hex


def check_guard(guard: Guard, samples: Mapping[UUID, RevisionSample], active: UUID, target: UUID) -> str | None:
    """Returns a sentence that says how a new revision violates its guard.

    Returns None if not, or if too little was measured.
    """
    new, old = samples.get(target, RevisionSample()), samples.get(active, RevisionSample())
    if new.requests < guard.min_requests:
        return None
    if guard.max_error_rate is not None and new.error_rate > max(guard.max_error_rate, old.error_rate):
        return f"{new.errors} of {new.requests} requests failed, more than {guard.max_error_rate:.1%}"
    if old.requests < guard.min_requests:
        return None
    ratio = _ratio(new.ttft_p90_s, old.ttft_p90_s)
    if guard.max_ttft_ratio is not None and ratio is not None and ratio > guard.max_ttft_ratio:
        return f"the first byte takes {ratio:.2f} times as long as before, more than {guard.max_ttft_ratio:g}"
    ratio = _ratio(new.tokens_per_s, old.tokens_per_s)
    if guard.min_token_rate_ratio is not None and ratio is not None and ratio < guard.min_token_rate_ratio:
        return f"it makes {ratio:.2f} times the tokens a second, less than {guard.min_token_rate_ratio:g}"
    return None


def _ratio(new: float | None, old: float | None) -> float | None:
    return new / old if new is not None and old else None
