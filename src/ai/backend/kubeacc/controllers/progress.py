"""Computes and writes the status of an operation after a step.

Pure; orders and phase change in one write, so no crash separates them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from ai.backend.common.device_operations import OperationPhase
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.device_operation import OperationEffect as E
from ai.backend.core.lifecycle.device_operation import OperationState, step
from ai.backend.core.lifecycle.device_operation import OperationTrigger as T
from ai.backend.infra.retry import Backoff
from ai.backend.kubeacc.controllers.decision import REVERSIBLE, Situation, Step
from ai.backend.kubeacc.crd.fields import Condition
from ai.backend.kubeacc.crd.objects import AcceleratorOperation
from ai.backend.kubeacc.crd.operations import AcceleratorOperationStatus, Order
from ai.backend.kubeacc.crd.vocabulary import PowerState

P = OperationPhase
_RETRY_BACKOFF = Backoff(2.0, 60.0)
POD_RELEASED = "PodReleased"
_KEEPS_REASON = frozenset({T.UNDONE, T.COMPLETED, T.ABORTED, T.FAILED, T.FAILED_FOR_NOW})
"""Triggers after which an operation keeps its reason: the one for which it failed, was cancelled or was too late."""


def timestamp(at: datetime) -> str:
    """Formats a time as the Kubernetes API writes it, to the second."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def advance(situation: Situation, taken_step: Step) -> tuple[AcceleratorOperationStatus, tuple[E, ...]]:
    """Returns the status after a step, without the executor's report, and the effects that remain to be done."""
    operation, now = situation.operation, situation.now
    old_status = operation.status
    status = replace(
        old_status,
        observed_generation=operation.metadata.generation,
        start_time=old_status.start_time or timestamp(now),
        deadline=old_status.deadline or timestamp(situation.deadline),
        executor=old_status.executor or situation.executor,
        policy=situation.policy.policy or old_status.policy,
        cost_per_hour=situation.policy.cost_per_hour or old_status.cost_per_hour,
        report=None,
    )
    if taken_step.trigger is None:
        status = _with_reason(status, taken_step)
        return replace(status, conditions=_with_generation(status.conditions, operation)), ()
    state, _, effects = step(OperationState(old_status.phase, old_status.verdict), taken_step.trigger)
    status = replace(status, phase=state.phase, verdict=state.verdict, retry_at=None)
    if old_status.verdict is None or taken_step.trigger not in _KEEPS_REASON:
        status = _with_reason(status, taken_step)
    if taken_step.rollback is not None:
        status = replace(status, rollback=taken_step.rollback)
    status = _with_order(situation, status, effects)
    if state.phase is P.RETRYING:
        delay_s = _RETRY_BACKOFF.delay_s(old_status.attempts - 1)
        status = replace(status, retry_at=timestamp(now + timedelta(seconds=delay_s)))
    if state.phase is P.VERIFYING:  # since when the device is compared with the report
        status = replace(status, retry_at=timestamp(now))
    if state.phase.is_final:
        status = replace(status, completion_time=timestamp(now))
    conditions = _conditions(operation.metadata.generation, old_status, status, now)
    return replace(status, conditions=conditions), effects


def _with_reason(status: AcceleratorOperationStatus, taken_step: Step) -> AcceleratorOperationStatus:
    """Returns the status with the reason and message of the step. An empty reason and message change nothing."""
    if not taken_step.reason and not taken_step.message:
        return status
    return replace(status, reason=taken_step.reason or status.reason, message=taken_step.message[:1024])


def _with_order(
    situation: Situation, status: AcceleratorOperationStatus, effects: Sequence[E]
) -> AcceleratorOperationStatus:
    """Returns the status with the order that the effects require."""
    old_order, device = situation.operation.status.order, situation.device
    sequence = (old_order.sequence if old_order is not None else 0) + 1
    issued_at = timestamp(situation.now)
    if E.ORDER in effects:
        order = Order(
            sequence=sequence,
            issued_at=issued_at,
            previous_program=old_order.previous_program if old_order else device.status.program if device else None,
            previous_power=old_order.previous_power
            if old_order
            else device.status.power_state
            if device
            else PowerState.UNKNOWN,
        )
        return replace(status, order=order, attempts=status.attempts + 1)
    if E.ABORT in effects and old_order is not None:
        return replace(status, order=replace(old_order, abort=True, issued_at=issued_at))
    if E.UNDO in effects and old_order is not None and situation.operation.spec.operation in REVERSIBLE:
        report = situation.report
        order = replace(
            old_order,
            sequence=sequence,
            issued_at=issued_at,
            rollback=True,
            abort=False,
            result=report.result if report is not None else old_order.result,
        )
        return replace(status, order=order)
    return status


def _conditions(
    generation: int, old_status: AcceleratorOperationStatus, status: AcceleratorOperationStatus, now: datetime
) -> tuple[Condition, ...]:
    """Returns the conditions ``Admitted`` and ``Complete``, for which ``kubectl wait`` can wait."""
    phase = status.phase
    is_refused = phase is P.REFUSED or (old_status.phase is P.PENDING and phase.is_final)
    admitted_value = "Unknown" if phase is P.PENDING else "False" if is_refused else "True"
    complete_value = "True" if phase.is_final else "False"
    old_conditions = {condition.type: condition for condition in old_status.conditions}
    conditions = []
    for name, value, reason in (
        ("Admitted", admitted_value, status.reason or phase.value),
        ("Complete", complete_value, phase.value if phase.is_final else "InProgress"),
    ):
        condition = old_conditions.get(name)
        if condition is None or condition.status != value:
            condition = Condition(
                type=name,
                status=value,
                reason=reason,
                message=status.message,
                last_transition_time=timestamp(now),
                observed_generation=generation,
            )
        conditions.append(replace(condition, observed_generation=generation))
    return tuple(conditions)


def _with_generation(conditions: Sequence[Condition], operation: AcceleratorOperation) -> tuple[Condition, ...]:
    """Returns copies of conditions that have the present generation of the operation as observed generation.

    ``kubectl wait`` accepts no conditions of an older generation.
    """
    generation = operation.metadata.generation
    return tuple(replace(condition, observed_generation=generation) for condition in conditions)


def ended_status(operation: AcceleratorOperation, gate_problem: str, now: datetime) -> AcceleratorOperationStatus:
    """Returns the status of an operation that has ended, even if its spec was changed afterwards.

    ``gate_problem``: why the pod that waits for the device stays gated; it becomes the condition ``PodReleased``.
    """
    status = operation.status
    conditions = _with_generation(status.conditions, operation)
    if gate_problem and all(condition.type != POD_RELEASED for condition in conditions):
        release_condition = Condition(
            type=POD_RELEASED,
            status="False",
            reason="PodRefused",
            message=gate_problem[:1024],
            last_transition_time=timestamp(now),
            observed_generation=operation.metadata.generation,
        )
        conditions = (*conditions, release_condition)
    return replace(status, conditions=conditions, observed_generation=operation.metadata.generation)
