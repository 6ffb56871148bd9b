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
            self._end_replicas(snapshot.replicas, ServingReason.ENDPOINT_DESTROYED)
            self.explanation = "the endpoint is being destroyed"
            return
        other_replicas = [
            replica for replica in snapshot.replicas if replica.revision not in (snapshot.active, snapshot.target)
        ]
        self._end_replicas(other_replicas, ServingReason.SUPERSEDED)
        target_revision = snapshot.target
        if target_revision is None or target_revision == snapshot.active:
            self._keep_active()
        elif snapshot.abort_reason is not None:
            self._roll_back(target_revision, snapshot.abort_reason)
        elif (abort := self._abort_reason(target_revision)) is not None:
            self.actions.append(abort)
            self.explanation = abort.detail
            self._roll_back(target_revision, abort.reason)
        else:
            self._roll_out(target_revision)

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

    def _alive_replicas(self, revision: UUID | None) -> list[Replica]:
        return [
            replica
            for replica in self.snapshot.replicas
            if replica.revision == revision and replica.status in _ALIVE and replica.id not in self._stepped
        ]

    def _ready_replicas(self, revision: UUID | None) -> list[Replica]:
        return [replica for replica in self._alive_replicas(revision) if replica.status is R.READY]

    @property
    def _holding_count(self) -> int:
        """Returns the number of replicas that hold resources."""
        return sum(replica.status is not R.TERMINATED for replica in self.snapshot.replicas)

    # Starting and ending

    def _start_replicas(self, revision: UUID, count: int) -> None:
        """Starts replicas of a revision.

        After a failure they come one by one, and each waits twice as long as the one before.
        """
        failed_starts = self.snapshot.failures.get(revision)
        if count <= 0:
            return
        if failed_starts is not None and failed_starts.count > 0:
            is_starting = any(replica.status in _STARTING for replica in self._alive_replicas(revision))
            delay_s = min(
                self.policy.first_backoff_s * 2.0 ** min(failed_starts.count - 1, 30), self.policy.max_backoff_s
            )
            if is_starting or not self._is_due(failed_starts.last_at + delay_s):
                return
            count = 1
        self.actions.append(StartReplicas(revision, count))

    def _end_replicas(self, replicas: Iterable[Replica], reason: ServingReason) -> None:
        for replica in replicas:
            if replica.status in _ALIVE and replica.id not in self._stepped:
                self.actions.append(StepReplica(replica.id, ReplicaTrigger.END_REQUESTED, reason))
                self._stepped.add(replica.id)

    def _end_surplus(self, revision: UUID, kept_count: int, reason: ServingReason) -> None:
        alive_replicas = sorted(self._alive_replicas(revision), key=_end_sort_key)
        self._end_replicas(alive_replicas[: max(0, len(alive_replicas) - kept_count)], reason)

    # Steady state and rolling back

    def _keep_active(self) -> None:
        snapshot = self.snapshot
        if snapshot.active is None:
            self.explanation = "no revision is to be served"
            return
        self._end_surplus(snapshot.active, snapshot.desired, ServingReason.SCALED_DOWN)
        self._start_replicas(snapshot.active, snapshot.desired - len(self._alive_replicas(snapshot.active)))
        self.weights = {snapshot.active: 1.0} if self._ready_replicas(snapshot.active) else {}
        self.explanation = f"{len(self._ready_replicas(snapshot.active))} of {snapshot.desired} replicas are ready"

    def _roll_back(self, target_revision: UUID, reason: ServingReason) -> None:
        """Brings the active revision back to the desired number of replicas.

        What was ready of the target serves until that is so, unless it is the target's own answers that were bad.
        """
        active_revision, desired_count = self.snapshot.active, self.snapshot.desired
        target_replicas = [replica for replica in self.snapshot.replicas if replica.revision == target_revision]
        if not any(replica.status is not R.TERMINATED for replica in target_replicas):
            self.actions.append(FinishRollback(target_revision))
        old_ready_count = len(self._ready_replicas(active_revision)) if active_revision is not None else 0
        if active_revision is not None:
            self._end_surplus(active_revision, desired_count, ServingReason.SCALED_DOWN)
            self._start_replicas(active_revision, desired_count - len(self._alive_replicas(active_revision)))
        is_guard_tripped = reason is ServingReason.GUARD_TRIPPED and old_ready_count > 0
        kept_count = (
            0
            if active_revision is None or is_guard_tripped
            else max(0, min(desired_count - old_ready_count, len(self._ready_replicas(target_revision))))
        )
        self._end_surplus(target_revision, kept_count, reason)
        self._weigh_by_number(active_revision, target_revision if kept_count else None)
        self.explanation = self.explanation or f"rolled back: {reason}"

    def _weigh_by_number(self, active_revision: UUID | None, target_revision: UUID | None) -> None:
        count_of_revision = {
            revision_id: float(len(self._ready_replicas(revision_id)))
            for revision_id in (active_revision, target_revision)
            if revision_id is not None
        }
        self.weights = {revision: ready_count for revision, ready_count in count_of_revision.items() if ready_count}

    def _abort_reason(self, target_revision: UUID) -> Abort | None:
        snapshot, policy = self.snapshot, self.policy
        failed_starts = snapshot.failures.get(target_revision)
        if failed_starts is not None and failed_starts.count >= policy.max_failures:
            detail = f"{failed_starts.count} replicas failed one after the other"
            return Abort(target_revision, ServingReason.START_FAILED, detail)
        if snapshot.active is None:
            return None
        if policy.guard is not None and (
            violation := check_guard(policy.guard, snapshot.samples, snapshot.active, target_revision)
        ):
            return Abort(target_revision, ServingReason.GUARD_TRIPPED, violation)
        if self._is_due(snapshot.started_at + policy.deadline_s):
            return Abort(target_revision, ServingReason.DEADLINE_PASSED, f"it took more than {policy.deadline_s:g} s")
        return None

    # Rolling out

    def _roll_out(self, target_revision: UUID) -> None:
        snapshot = self.snapshot
        if snapshot.active is None:
            self._start_first_revision(target_revision)
        elif snapshot.desired == 0:
            self._end_replicas(self._alive_replicas(snapshot.active), ServingReason.SUPERSEDED)
            self._promote(target_revision, "no replica is wanted now")
        elif self.policy.kind is RolloutKind.ROLLING:
            self._replace_gradually(snapshot.active, target_revision)
        elif self.policy.kind is RolloutKind.BLUE_GREEN:
            self._switch_at_once(snapshot.active, target_revision)
        else:
            self._shift_in_steps(snapshot.active, target_revision)

    def _promote(self, target_revision: UUID, explanation: str) -> None:
        self.actions.append(Promote(target_revision))
        self.weights = {target_revision: 1.0} if self._ready_replicas(target_revision) else {}
        self.explanation = f"promoted: {explanation}"

    def _start_first_revision(self, target_revision: UUID) -> None:
        desired_count = self.snapshot.desired
        self._end_surplus(target_revision, desired_count, ServingReason.SCALED_DOWN)
        self._start_replicas(target_revision, desired_count - len(self._alive_replicas(target_revision)))
        ready_count = len(self._ready_replicas(target_revision))
        if ready_count >= min(desired_count, max(1, desired_count - self.policy.max_unavailable)):
            self._promote(target_revision, f"{ready_count} of {desired_count} replicas are ready")
        else:
            self.weights = {target_revision: 1.0} if ready_count else {}
            self.explanation = f"{ready_count} of {desired_count} replicas of the first revision are ready"

    def _replace_gradually(self, active_revision: UUID, target_revision: UUID) -> None:
        snapshot, desired_count = self.snapshot, self.snapshot.desired
        max_surge, max_unavailable = self.policy.max_surge, self.policy.max_unavailable
        if max_surge + max_unavailable <= 0:
            max_surge = 1
        new_ready_count = len(self._ready_replicas(target_revision))
        if new_ready_count >= desired_count:
            self._end_surplus(target_revision, desired_count, ServingReason.SCALED_DOWN)
            self._promote(target_revision, f"{new_ready_count} of {desired_count} replicas are ready")
            return
        self._end_surplus(target_revision, desired_count, ServingReason.SCALED_DOWN)
        startable_count = desired_count + max_surge - self._holding_count
        self._start_replicas(
            target_revision, min(desired_count - len(self._alive_replicas(target_revision)), startable_count)
        )
        old_replicas = sorted(self._alive_replicas(active_revision), key=_end_sort_key)
        unready_replicas = [replica for replica in old_replicas if replica.status is not R.READY]
        self._end_replicas(unready_replicas, ServingReason.SUPERSEDED)
        ready_replicas = [replica for replica in old_replicas if replica.status is R.READY]
        surplus_count = len(ready_replicas) + new_ready_count - max(0, desired_count - max_unavailable)
        self._end_replicas(ready_replicas[: max(0, surplus_count)], ServingReason.SUPERSEDED)
        self._weigh_by_number(active_revision, target_revision)
        self.explanation = f"{new_ready_count} of {desired_count} replicas of the new revision are ready"
        if snapshot.failures.get(target_revision):
            self.explanation += ", after failed starts"

    def _keep_old(self, active_revision: UUID) -> None:
        self._end_surplus(active_revision, self.snapshot.desired, ServingReason.SCALED_DOWN)
        self._start_replicas(active_revision, self.snapshot.desired - len(self._alive_replicas(active_revision)))

    def _switch_at_once(self, active_revision: UUID, target_revision: UUID) -> None:
        desired_count = self.snapshot.desired
        self._keep_old(active_revision)
        self._end_surplus(target_revision, desired_count, ServingReason.SCALED_DOWN)
        self._start_replicas(target_revision, desired_count - len(self._alive_replicas(target_revision)))
        if self.snapshot.step:
            self._watch_target(active_revision, target_revision)
            return
        ready_since = self._ready_since(target_revision, desired_count)
        if ready_since is not None and self._is_due(ready_since + self.policy.soak_s):
            if self.policy.guard is None or self.policy.watch_s <= 0:
                self._promote(target_revision, f"all {desired_count} replicas are ready")
                return
            self.actions.append(EnterStep(1))
            self.weights = {target_revision: 1.0}
            self.explanation = "all requests go to the new revision, which is watched"
            return
        self.weights = {active_revision: 1.0} if self._ready_replicas(active_revision) else {}
        self.explanation = (
            f"{len(self._ready_replicas(target_revision))} of {desired_count} replicas of the new revision are ready"
        )

    def _watch_target(self, active_revision: UUID, target_revision: UUID) -> None:
        """Keeps the old replicas, which get no requests, until the guard has judged the new replicas long enough."""
        snapshot, watch_s = self.snapshot, self.policy.watch_s
        if snapshot.step > 1 or self._is_due(snapshot.step_since + watch_s):
            self._promote(
                target_revision, f"it kept its guard for {watch_s:g} s" if snapshot.step == 1 else "as requested"
            )
            return
        serving_revision = target_revision if self._ready_replicas(target_revision) else active_revision
        self.weights = {serving_revision: 1.0} if self._ready_replicas(serving_revision) else {}
        self.explanation = f"all requests go to the new revision, which is watched for {watch_s:g} s"

    def _shift_in_steps(self, active_revision: UUID, target_revision: UUID) -> None:
        snapshot, steps, desired_count = self.snapshot, self.policy.steps, self.snapshot.desired
        self._keep_old(active_revision)
        step_number = min(snapshot.step, len(steps))
        is_last = step_number == len(steps)
        needed_count = (
            desired_count
            if is_last
            else max(1, min(desired_count, math.ceil(desired_count * steps[step_number].weight / 100.0)))
        )
        self._end_surplus(target_revision, needed_count, ServingReason.SCALED_DOWN)
        self._start_replicas(target_revision, needed_count - len(self._alive_replicas(target_revision)))
        ready_since = self._ready_since(target_revision, needed_count)
        target_percent = 100.0 if is_last else min(100.0, max(0.0, steps[step_number].weight))
        if ready_since is None:
            target_percent = (
                min(100.0, max(0.0, steps[step_number - 1].weight))
                if step_number and self._ready_replicas(target_revision)
                else 0.0
            )
            ready_count = len(self._ready_replicas(target_revision))
            self.explanation = f"step {step_number + 1}: {ready_count} of {needed_count} new replicas are ready"
        elif is_last:
            self._promote(target_revision, "all steps are done")
            return
        else:
            self.explanation = f"step {step_number + 1} of {len(steps)}: {target_percent:g} per cent of the requests"
            hold_s, hold_began = steps[step_number].hold_s, max(snapshot.step_since, ready_since)
            if hold_s is not None and self._is_due(hold_began + hold_s):
                self.actions.append(EnterStep(step_number + 1))
        percent_of_revision = {
            active_revision: 100.0 - target_percent if self._ready_replicas(active_revision) else 0.0,
            target_revision: target_percent if self._ready_replicas(target_revision) else 0.0,
        }
        self.weights = {revision: percent for revision, percent in percent_of_revision.items() if percent > 0}
        if not self.weights and self._ready_replicas(target_revision):
            self.weights = {target_revision: 1.0}

    def _ready_since(self, revision: UUID, count: int) -> float | None:
        """Returns the time since which a revision has had ``count`` ready replicas. Returns None if it has fewer."""
        ready_times = sorted(replica.since for replica in self._ready_replicas(revision))
        return ready_times[count - 1] if 0 < count <= len(ready_times) else None


def _end_sort_key(replica: Replica) -> tuple[int, int, float, str]:
    """Returns the sort key by which replicas are ended: idle ones first, then those with the least work, then the
    youngest."""
    return _END_ORDER.index(replica.status), replica.in_flight_tokens, -replica.since, replica.id.hex


def check_guard(
    guard: Guard, samples: Mapping[UUID, RevisionSample], active_revision: UUID, target_revision: UUID
) -> str | None:
    """Returns a sentence that says how a new revision violates its guard.

    Returns None if not, or if too little was measured.
    """
    new_sample, old_sample = (
        samples.get(target_revision, RevisionSample()),
        samples.get(active_revision, RevisionSample()),
    )
    if new_sample.requests < guard.min_requests:
        return None
    if guard.max_error_rate is not None and new_sample.error_rate > max(guard.max_error_rate, old_sample.error_rate):
        return f"{new_sample.errors} of {new_sample.requests} requests failed, more than {guard.max_error_rate:.1%}"
    if old_sample.requests < guard.min_requests:
        return None
    ratio = _ratio(new_sample.ttft_p90_s, old_sample.ttft_p90_s)
    if guard.max_ttft_ratio is not None and ratio is not None and ratio > guard.max_ttft_ratio:
        return f"the first byte takes {ratio:.2f} times as long as before, more than {guard.max_ttft_ratio:g}"
    ratio = _ratio(new_sample.tokens_per_s, old_sample.tokens_per_s)
    if guard.min_token_rate_ratio is not None and ratio is not None and ratio < guard.min_token_rate_ratio:
        return f"it makes {ratio:.2f} times the tokens a second, less than {guard.min_token_rate_ratio:g}"
    return None


def _ratio(new_value: float | None, old_value: float | None) -> float | None:
    return new_value / old_value if new_value is not None and old_value else None
