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
_RETRY = Backoff(2.0, 60.0)
POD_RELEASED = "PodReleased"
_KEEPS_REASON = frozenset({T.UNDONE, T.COMPLETED, T.ABORTED, T.FAILED, T.FAILED_FOR_NOW})
"""Triggers after which an operation keeps its reason: the one for which it failed, was cancelled or was too late."""


def timestamp(at: datetime) -> str:
    """Formats a time as the Kubernetes API writes it, to the second."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def advance(situation: Situation, taken: Step) -> tuple[AcceleratorOperationStatus, tuple[E, ...]]:
    """Returns the status after a step, without the executor's report, and the effects that remain to be done."""
    operation, now = situation.operation, situation.now
    old = operation.status
    status = replace(
        old,
        observed_generation=operation.metadata.generation,
        start_time=old.start_time or timestamp(now),
        deadline=old.deadline or timestamp(situation.deadline),
        executor=old.executor or situation.executor,
        policy=situation.policy.policy or old.policy,
        cost_per_hour=situation.policy.cost_per_hour or old.cost_per_hour,
        report=None,
    )
    if taken.trigger is None:
        status = _explained(status, taken)
        return replace(status, conditions=_observed(status.conditions, operation)), ()
    state, _, effects = step(OperationState(old.phase, old.verdict), taken.trigger)
    status = replace(status, phase=state.phase, verdict=state.verdict, retry_at=None)
    if old.verdict is None or taken.trigger not in _KEEPS_REASON:
        status = _explained(status, taken)
    if taken.rollback is not None:
        status = replace(status, rollback=taken.rollback)
    status = _ordered(situation, status, effects)
    if state.phase is P.RETRYING:
        delay_s = _RETRY.delay_s(old.attempts - 1)
        status = replace(status, retry_at=timestamp(now + timedelta(seconds=delay_s)))
    if state.phase is P.VERIFYING:  # since when the device is compared with the report
        status = replace(status, retry_at=timestamp(now))
    if state.phase.is_final:
        status = replace(status, completion_time=timestamp(now))
    conditions = _conditions(operation.metadata.generation, old, status, now)
    return replace(status, conditions=conditions), effects


def _explained(status: AcceleratorOperationStatus, taken: Step) -> AcceleratorOperationStatus:
    """Returns the status with the reason and message of the step. An empty reason and message change nothing."""
    if not taken.reason and not taken.message:
        return status
    return replace(status, reason=taken.reason or status.reason, message=taken.message[:1024])


def _ordered(
    situation: Situation, status: AcceleratorOperationStatus, effects: Sequence[E]
) -> AcceleratorOperationStatus:
    """Returns the status with the order that the effects require."""
    old, device = situation.operation.status.order, situation.device
    sequence = (old.sequence if old is not None else 0) + 1
    issued_at = timestamp(situation.now)
    if E.ORDER in effects:
        order = Order(
            sequence=sequence,
            issued_at=issued_at,
            previous_program=old.previous_program if old else device.status.program if device else None,
            previous_power=old.previous_power if old else device.status.power_state if device else PowerState.UNKNOWN,
        )
        return replace(status, order=order, attempts=status.attempts + 1)
    if E.ABORT in effects and old is not None:
        return replace(status, order=replace(old, abort=True, issued_at=issued_at))
    if E.UNDO in effects and old is not None and situation.operation.spec.operation in REVERSIBLE:
        report = situation.report
        order = replace(
            old,
            sequence=sequence,
            issued_at=issued_at,
            rollback=True,
            abort=False,
            result=report.result if report is not None else old.result,
        )
        return replace(status, order=order)
    return status


def _conditions(
    generation: int, old: AcceleratorOperationStatus, status: AcceleratorOperationStatus, now: datetime
) -> tuple[Condition, ...]:
    """Returns the conditions ``Admitted`` and ``Complete``, for which ``kubectl wait`` can wait."""
    phase = status.phase
    is_refused = phase is P.REFUSED or (old.phase is P.PENDING and phase.is_final)
    admitted = "Unknown" if phase is P.PENDING else "False" if is_refused else "True"
    complete = "True" if phase.is_final else "False"
    before = {condition.type: condition for condition in old.conditions}
    conditions = []
    for name, value, reason in (
        ("Admitted", admitted, status.reason or phase.value),
        ("Complete", complete, phase.value if phase.is_final else "InProgress"),
    ):
        condition = before.get(name)
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


def _observed(conditions: Sequence[Condition], operation: AcceleratorOperation) -> tuple[Condition, ...]:
    """Returns conditions with the present generation, because ``kubectl wait`` accepts no older ones."""
    generation = operation.metadata.generation
    return tuple(replace(condition, observed_generation=generation) for condition in conditions)


def ended(operation: AcceleratorOperation, gate_problem: str, now: datetime) -> AcceleratorOperationStatus:
    """Returns the status of an operation that has ended, even if its spec was changed afterwards.

    ``gate_problem``: why the pod that waits for the device stays gated; it becomes the condition ``PodReleased``.
    """
    status = operation.status
    conditions = _observed(status.conditions, operation)
    if gate_problem and all(condition.type != POD_RELEASED for condition in conditions):
        released = Condition(
            type=POD_RELEASED,
            status="False",
            reason="PodRefused",
            message=gate_problem[:1024],
            last_transition_time=timestamp(now),
            observed_generation=operation.metadata.generation,
        )
        conditions = (*conditions, released)
    return replace(status, conditions=conditions, observed_generation=operation.metadata.generation)
