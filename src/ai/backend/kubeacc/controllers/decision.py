"""Decides the next step of an operation from all known facts about the operation. Pure: no clock, no requests.

The answer depends on the stored state alone, so a controller that was killed anywhere goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

import msgspec

from ai.backend.common.device_operations import OperationPhase, OperationVerb
from ai.backend.core.lifecycle.device_operation import TRANSITIONS, OperationTrigger
from ai.backend.kubeacc.crd.accelerators import OperationRef
from ai.backend.kubeacc.crd.objects import Accelerator, AcceleratorOperation
from ai.backend.kubeacc.crd.operations import Report
from ai.backend.kubeacc.crd.vocabulary import (
    AttachState,
    ControllerCondition,
    DrainMode,
    LifecycleOwner,
    Outcome,
    PowerState,
    RollbackState,
)
from ai.backend.kubeacc.policies.coexistence import REPORT_ONLY, Ownership, may_operate
from ai.backend.kubeacc.policies.evaluation import Decision

P, T, V = OperationPhase, OperationTrigger, OperationVerb
EXECUTOR_SILENCE_S = 90.0
"""The seconds after which an executor counts as lost that is away or has not begun an order."""
UNDO_LIMIT_S = 300.0
VERIFY_LIMIT_S = 60.0
"""The seconds for which the state of a device may contradict the report of its executor."""
RECHECK_S = 15.0
REVERSIBLE = frozenset({V.ATTACH, V.DETACH, V.PROGRAM, V.POWER, V.PARTITION})
CURES_QUARANTINE = frozenset({V.RESET, V.DETACH})
"""Operations that a quarantined device admits besides reports, and whose success ends the quarantine."""


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """Holds all known facts about an operation.

    ``device`` None: there is no such Accelerator. ``executor`` is who would act, empty if nobody; ``executor_silent_s``
    for how long it was not seen alive, 0 if it is; ``artifact_problem`` why the image may not be loaded, empty if it
    may.
    """

    operation: AcceleratorOperation
    device: Accelerator | None
    ownership: Ownership | None
    policy: Decision
    retry_limit: int
    deadline: datetime
    now: datetime
    executor: str = ""
    executor_silent_s: float = 0.0
    artifact_problem: str = ""

    @property
    def holder(self) -> OperationRef | None:
        """Returns the operation that holds the device."""
        return self.device.status.operation if self.device is not None else None

    @property
    def holds_device(self) -> bool:
        return self.holder is not None and self.holder.uid == self.operation.metadata.uid

    @property
    def report(self) -> Report | None:
        """Returns the executor's report on the operation's present order, or None if there is no such report.

        A report on an earlier order is ignored.
        """
        status = self.operation.status
        if status.order is None or status.report is None or status.report.sequence != status.order.sequence:
            return None
        return status.report


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the next action of the controllers on an operation.

    Without a ``trigger`` the operation waits in its phase, for the ``reason``, and is asked again after ``again_s``.
    ``acquire``: the device is to be locked; ``evict``: its holders evicted.
    """

    trigger: OperationTrigger | None = None
    reason: str = ""
    message: str = ""
    again_s: float | None = None
    acquire: bool = False
    evict: bool = False
    rollback: RollbackState | None = None


def next_step(situation: Situation) -> Step:
    """Returns the next step of an operation that has not ended."""
    operation, phase = situation.operation, situation.operation.status.phase
    transitions = TRANSITIONS[phase]
    if T.CANCEL_REQUESTED in transitions and (operation.spec.cancel or operation.metadata.deletion_timestamp):
        cancel_reason = "the operation was deleted" if operation.metadata.deletion_timestamp else "cancel was set"
        return Step(trigger=T.CANCEL_REQUESTED, reason="Cancelled", message=cancel_reason)
    if T.DEADLINE_PASSED in transitions and situation.now >= situation.deadline:
        return Step(trigger=T.DEADLINE_PASSED, reason="DeadlineExceeded", message=f"the deadline passed in {phase}")
    step = _PHASES[phase](situation)
    if step.trigger is None and T.DEADLINE_PASSED in transitions:
        remaining_s = max(0.0, (situation.deadline - situation.now).total_seconds())
        again_s = remaining_s if step.again_s is None else min(step.again_s, remaining_s)
        return Step(reason=step.reason, message=step.message, again_s=again_s, acquire=step.acquire, evict=step.evict)
    return step


def _refusal_step(situation: Situation) -> Step | None:
    """Returns the step that ends an operation which may never run. Returns None if it may run now or later."""
    device, spec = situation.device, situation.operation.spec
    if device is None:
        return Step(
            trigger=T.DEVICE_GONE, reason="NoSuchAccelerator", message=f"there is no accelerator {spec.accelerator}"
        )
    owner: LifecycleOwner | None = situation.ownership.owner if situation.ownership is not None else None
    if not may_operate(owner, spec.operation):
        reason = situation.ownership.reason if situation.ownership is not None else "NotManaged"
        message = situation.ownership.message if situation.ownership is not None else "no class takes the device"
        return Step(trigger=T.REFUSED, reason=reason, message=message)
    description = device.status.device
    if description is not None and spec.operation not in description.operations and spec.operation is not V.DIAGNOSE:
        supported_operations = ", ".join(description.operations) or "none"
        message = (
            f"the driver {device.spec.driver} cannot {spec.operation} the device; what it can: {supported_operations}"
        )
        return Step(trigger=T.REFUSED, reason="NotSupported", message=message)
    if not situation.executor:
        message = "the device is at no node, and no driver of the controllers knows it"
        return Step(trigger=T.REFUSED, reason="NoExecutor", message=message)
    if spec.attach is not None and device.status.attach_state is AttachState.ATTACHED:
        message = f"the device is attached to {device.spec.node_name or 'a machine that is no node'}: detach it first"
        return Step(trigger=T.REFUSED, reason="AlreadyAttached", message=message)
    if device.status.is_quarantined and spec.operation not in CURES_QUARANTINE | REPORT_ONLY:
        message = "the device is quarantined: its state is not known since an operation was interrupted; reset it"
        return Step(trigger=T.REFUSED, reason="Quarantined", message=message)
    if situation.artifact_problem:
        return Step(trigger=T.REFUSED, reason="ImageRejected", message=situation.artifact_problem)
    if not situation.policy.is_allowed and not situation.policy.must_wait:
        return Step(trigger=T.REFUSED, reason=situation.policy.reason, message=situation.policy.message)
    return None


def _is_classified(device: Accelerator) -> bool:
    """Returns True if the controllers have already looked for the class of a device."""
    return any(condition.type == ControllerCondition.MANAGED for condition in device.status.conditions)


def _pending_step(situation: Situation) -> Step:
    device = situation.device
    if device is not None and situation.ownership is None and not _is_classified(device):
        return Step(
            reason="NotClassifiedYet", message="the device is new: its class is not known yet", again_s=RECHECK_S
        )
    return _refusal_step(situation) or Step(
        trigger=T.ADMITTED, reason=situation.policy.reason, message=situation.policy.message
    )


def _queued_step(situation: Situation) -> Step:
    if situation.holds_device:  # acquired before a crash, or by the step before
        return Step(trigger=T.DEVICE_ACQUIRED, reason="DeviceAcquired")
    if (refusal := _refusal_step(situation)) is not None:
        return refusal
    if not situation.policy.is_allowed:
        return _policy_wait_step(situation)
    if (holder := situation.holder) is not None:
        message = f"the operation {holder.namespace}/{holder.name} holds the device"
        return Step(reason="DeviceBusy", message=message, again_s=RECHECK_S)
    return Step(acquire=True, again_s=0.0)


def _policy_wait_step(situation: Situation) -> Step:
    """Returns the step by which an operation waits, because a quota is used up or no maintenance window is open."""
    policy = situation.policy
    again_s = RECHECK_S
    if policy.retry_at is not None:
        again_s = max(0.0, (policy.retry_at - situation.now).total_seconds())
    return Step(reason=policy.reason, message=policy.message, again_s=again_s)


def _draining_step(situation: Situation) -> Step:
    device = situation.device
    if device is None:
        return Step(trigger=T.DEVICE_GONE, reason="AcceleratorGone", message="the accelerator vanished")
    if (refusal := _refusal_step(situation)) is not None:  # the wait for workloads may have been long
        return refusal
    if not situation.policy.is_allowed:
        return _policy_wait_step(situation)
    holders = device.status.holders
    if not holders or situation.policy.may_run_while_held:
        return Step(trigger=T.DRAINED, reason="Executing")
    pod_names = ", ".join(sorted({f"{holder.namespace}/{holder.pod}" for holder in holders}))
    drain = situation.operation.spec.drain
    if drain is DrainMode.REFUSE:
        return Step(trigger=T.HELD_BY_WORKLOAD, reason="HeldByWorkload", message=f"{pod_names} holds the device"[:1024])
    return Step(
        reason="WaitingForWorkloads",
        message=f"waits for the end of {pod_names}"[:1024],
        again_s=RECHECK_S,
        evict=drain is DrainMode.EVICT,
    )


def _executing_step(situation: Situation) -> Step:
    """Returns the step of a RUNNING or CANCELLING operation. The executor's report decides."""
    report, status = situation.report, situation.operation.status
    if report is not None and report.outcome is not None:
        reason = report.reason or report.outcome
        if report.outcome is Outcome.SUCCEEDED:
            return Step(trigger=T.COMPLETED, reason=reason, message=report.message)
        if report.outcome is Outcome.ABORTED:
            return Step(trigger=T.ABORTED, reason=reason, message=report.message)
        is_final = not report.retryable or status.attempts > situation.retry_limit
        trigger = T.FAILED if is_final else T.FAILED_FOR_NOW
        return Step(trigger=trigger, reason=reason, message=report.message)
    if (lost_step := _lost_executor_step(situation)) is not None:
        return lost_step
    return Step(again_s=RECHECK_S)


def _lost_executor_step(situation: Situation, limit_s: float | None = None) -> Step | None:
    """Returns the step of an operation whose executor is away, has not begun its order, or exceeds ``limit_s``."""
    status = situation.operation.status
    order_age_s = 0.0
    if status.order is not None and status.order.issued_at is not None:
        order_age_s = (situation.now - datetime.fromisoformat(status.order.issued_at)).total_seconds()
    has_report = situation.report is not None
    if situation.device is None and status.phase is not P.VERIFYING:
        message = "the accelerator vanished while it was operated"
    elif situation.executor_silent_s >= EXECUTOR_SILENCE_S:
        message = f"{status.executor} is not seen alive for {situation.executor_silent_s:.0f} s"
    elif status.order is not None and not has_report and order_age_s >= EXECUTOR_SILENCE_S:
        message = f"{status.executor} has not begun the order within {order_age_s:.0f} s"
    elif limit_s is not None and order_age_s >= limit_s:
        message = f"{status.executor} has not finished within {order_age_s:.0f} s"
    else:
        return None
    return Step(trigger=T.EXECUTOR_LOST, reason="ExecutorLost", message=message, rollback=RollbackState.FAILED)


def _cancelling_step(situation: Situation) -> Step:
    step = _executing_step(situation)
    return (_lost_executor_step(situation, UNDO_LIMIT_S) or step) if step.trigger is None else step


def _retrying_step(situation: Situation) -> Step:
    if (lost_step := _lost_executor_step(situation)) is not None and situation.device is None:
        return lost_step
    retry_at = situation.operation.status.retry_at
    remaining_s = (datetime.fromisoformat(retry_at) - situation.now).total_seconds() if retry_at else 0.0
    return Step(trigger=T.RETRY_DUE, reason="Executing") if remaining_s <= 0 else Step(again_s=remaining_s)


def _verifying_step(situation: Situation) -> Step:
    status = situation.operation.status
    contradiction = _device_contradiction(situation)
    if contradiction is None:
        return Step(trigger=T.CONFIRMED, reason="Succeeded", message=status.message)
    reported_at = situation.now
    if status.order is not None and status.order.issued_at is not None and status.retry_at is not None:
        reported_at = datetime.fromisoformat(status.retry_at)
    remaining_s = (reported_at + timedelta(seconds=VERIFY_LIMIT_S) - situation.now).total_seconds()
    if remaining_s <= 0:
        return Step(trigger=T.CONTRADICTED, reason="NotConfirmed", message=contradiction)
    return Step(reason="Verifying", message=contradiction, again_s=min(remaining_s, RECHECK_S))


def _device_contradiction(situation: Situation) -> str | None:
    """Returns how the device differs from the reported success. Returns None if it agrees or cannot be compared."""
    device, spec = situation.device, situation.operation.spec
    if device is None:
        # A partition that was destroyed vanishes, and so may a device that was detached.
        is_absence_expected = spec.operation is V.DETACH or (
            spec.partition is not None and spec.partition.profile is None
        )
        return None if is_absence_expected else "the accelerator vanished"
    status = device.status
    if spec.power is not None and status.power_state not in (PowerState.UNKNOWN, spec.power.state):
        return f"the device is {status.power_state}, not {spec.power.state}"
    if spec.program is not None and (status.program is None or status.program.sha256 != spec.program.artifact.sha256):
        return "the device does not show the image"
    if spec.attach is not None and (
        status.attach_state is AttachState.DETACHED or device.spec.node_name != spec.attach.node_name
    ):
        return f"the device is not attached to {spec.attach.node_name}"
    if spec.operation is V.DETACH and status.attach_state is AttachState.ATTACHED:
        return "the device is still attached"
    return None


def _rollback_step(situation: Situation) -> Step:
    if situation.operation.spec.operation not in REVERSIBLE:
        return Step(trigger=T.UNDONE, rollback=RollbackState.NOT_NEEDED)
    report = situation.report
    if report is not None and report.outcome is Outcome.SUCCEEDED:
        return Step(trigger=T.UNDONE, rollback=RollbackState.DONE)
    if report is not None and report.outcome is not None:
        message = f"the rollback failed: {report.message}"[:1024]
        return Step(trigger=T.UNDO_FAILED, reason="RollbackFailed", message=message, rollback=RollbackState.FAILED)
    return _lost_executor_step(situation, UNDO_LIMIT_S) or Step(again_s=RECHECK_S)


_PHASES: Mapping[OperationPhase, Callable[[Situation], Step]] = {
    P.PENDING: _pending_step,
    P.QUEUED: _queued_step,
    P.DRAINING: _draining_step,
    P.RUNNING: _executing_step,
    P.RETRYING: _retrying_step,
    P.VERIFYING: _verifying_step,
    P.CANCELLING: _cancelling_step,
    P.ROLLING_BACK: _rollback_step,
}
