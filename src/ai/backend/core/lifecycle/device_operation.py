"""Defines the state machine of an operation on an accelerator of a Kubernetes cluster (spec 02, life cycle management).

Rules:

1. Nothing touches a device before the operation holds it (DRAINING and on), and one operation holds it at a time.
2. A device is free of workloads when RUNNING begins, unless the policy lets the operation run while it is held.
3. Only an executor acts. It gets one order at a time; every order is safe to repeat.
4. What may have changed the device is undone if it does not succeed: RUNNING, RETRYING, VERIFYING and CANCELLING end
   through ROLLING_BACK. The verdict says how the operation ends once it is undone; the first reason decides.
5. An executor that is lost leaves a device of which nobody knows the state: it is quarantined.
6. Cancelling and the deadline count until the rollback begins. The rollback has a time limit of its own.
7. Users only ask to cancel. Every trigger without a row is late or repeated and changes nothing: an operation that has
   ended stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from ai.backend.common.device_operations import OperationPhase
from ai.backend.core.lifecycle.transition import Transition, Transitions

P = OperationPhase


class OperationTrigger(StrEnum):
    ADMITTED = "admitted"
    REFUSED = "refused"
    HELD_BY_WORKLOAD = "held-by-workload"
    DEVICE_ACQUIRED = "device-acquired"
    DRAINED = "drained"
    COMPLETED = "completed"
    FAILED_FOR_NOW = "failed-for-now"
    FAILED = "failed"
    ABORTED = "aborted"
    RETRY_DUE = "retry-due"
    CONFIRMED = "confirmed"
    CONTRADICTED = "contradicted"
    UNDONE = "undone"
    UNDO_FAILED = "undo-failed"
    CANCEL_REQUESTED = "cancel-requested"
    DEADLINE_PASSED = "deadline-passed"
    DEVICE_GONE = "device-gone"
    EXECUTOR_LOST = "executor-lost"


T = OperationTrigger


class OperationEffect(StrEnum):
    """Lists the effects that stored transitions of a device operation have.

    After a crash, each effect is repeated from the stored phase.

    ``order``, ``undo``, ``abort``: the executor gets an order. ``quarantine``: the device takes nothing until somebody
    has looked at it. ``release``: the device is free for the next operation.
    """

    ORDER = "order"
    UNDO = "undo"
    ABORT = "abort"
    QUARANTINE = "quarantine"
    RELEASE = "release"


E = OperationEffect
Row = tuple[OperationPhase, tuple[OperationEffect, ...]]

TRANSITIONS: Mapping[OperationPhase, Mapping[OperationTrigger, Row]] = {
    P.PENDING: {
        T.ADMITTED: (P.QUEUED, ()),
        T.REFUSED: (P.REFUSED, ()),
        T.CANCEL_REQUESTED: (P.CANCELLED, ()),
        T.DEADLINE_PASSED: (P.FAILED, ()),
        T.DEVICE_GONE: (P.REFUSED, ()),
    },
    P.QUEUED: {
        T.DEVICE_ACQUIRED: (P.DRAINING, ()),
        T.REFUSED: (P.REFUSED, (E.RELEASE,)),
        T.CANCEL_REQUESTED: (P.CANCELLED, (E.RELEASE,)),
        T.DEADLINE_PASSED: (P.FAILED, (E.RELEASE,)),
        T.DEVICE_GONE: (P.FAILED, (E.RELEASE,)),
    },
    P.DRAINING: {
        T.DRAINED: (P.RUNNING, (E.ORDER,)),
        T.HELD_BY_WORKLOAD: (P.REFUSED, (E.RELEASE,)),
        T.REFUSED: (P.REFUSED, (E.RELEASE,)),
        T.CANCEL_REQUESTED: (P.CANCELLED, (E.RELEASE,)),
        T.DEADLINE_PASSED: (P.FAILED, (E.RELEASE,)),
        T.DEVICE_GONE: (P.FAILED, (E.RELEASE,)),
    },
    P.RUNNING: {
        T.COMPLETED: (P.VERIFYING, ()),
        T.FAILED_FOR_NOW: (P.RETRYING, ()),
        T.FAILED: (P.ROLLING_BACK, (E.UNDO,)),
        T.ABORTED: (P.ROLLING_BACK, (E.UNDO,)),
        T.CANCEL_REQUESTED: (P.CANCELLING, (E.ABORT,)),
        T.DEADLINE_PASSED: (P.CANCELLING, (E.ABORT,)),
        T.EXECUTOR_LOST: (P.FAILED, (E.QUARANTINE, E.RELEASE)),
    },
    P.RETRYING: {
        T.RETRY_DUE: (P.RUNNING, (E.ORDER,)),
        T.CANCEL_REQUESTED: (P.ROLLING_BACK, (E.UNDO,)),
        T.DEADLINE_PASSED: (P.ROLLING_BACK, (E.UNDO,)),
        T.EXECUTOR_LOST: (P.FAILED, (E.QUARANTINE, E.RELEASE)),
    },
    P.VERIFYING: {
        T.CONFIRMED: (P.SUCCEEDED, (E.RELEASE,)),
        T.CONTRADICTED: (P.ROLLING_BACK, (E.UNDO,)),
        T.CANCEL_REQUESTED: (P.ROLLING_BACK, (E.UNDO,)),
        T.DEADLINE_PASSED: (P.ROLLING_BACK, (E.UNDO,)),
        T.EXECUTOR_LOST: (P.FAILED, (E.QUARANTINE, E.RELEASE)),
    },
    P.CANCELLING: {
        T.COMPLETED: (P.ROLLING_BACK, (E.UNDO,)),
        T.FAILED_FOR_NOW: (P.ROLLING_BACK, (E.UNDO,)),
        T.FAILED: (P.ROLLING_BACK, (E.UNDO,)),
        T.ABORTED: (P.ROLLING_BACK, (E.UNDO,)),
        T.EXECUTOR_LOST: (P.FAILED, (E.QUARANTINE, E.RELEASE)),
    },
    P.ROLLING_BACK: {
        T.UNDONE: (P.FAILED, (E.RELEASE,)),
        T.UNDO_FAILED: (P.FAILED, (E.QUARANTINE, E.RELEASE)),
        T.EXECUTOR_LOST: (P.FAILED, (E.QUARANTINE, E.RELEASE)),
    },
    P.SUCCEEDED: {},
    P.FAILED: {},
    P.CANCELLED: {},
    P.REFUSED: {},
}
#: Triggers that decide how an operation ends that is undone.
_VERDICTS: Mapping[OperationTrigger, OperationPhase] = {
    T.CANCEL_REQUESTED: P.CANCELLED,
    T.DEADLINE_PASSED: P.FAILED,
    T.FAILED: P.FAILED,
    T.ABORTED: P.FAILED,
    T.CONTRADICTED: P.FAILED,
}
_UNDOING = frozenset({P.CANCELLING, P.ROLLING_BACK})


class OperationState(NamedTuple):
    """Holds the phase of a device operation and, during an undo, the phase in which the operation will end."""

    phase: OperationPhase = P.PENDING
    verdict: OperationPhase | None = None


def step(
    state: OperationState, trigger: OperationTrigger, *, stimulus_id: str = ""
) -> tuple[OperationState, Transitions, tuple[OperationEffect, ...]]:
    """Applies one trigger to an operation. ``stimulus_id`` names the cause.

    Returns:
        The next state, the transition that led there, and what is to follow once it is stored; the same state and
        nothing else if the trigger is late or repeated.
    """
    row = TRANSITIONS[state.phase].get(trigger)
    if row is None:
        return state, (), ()
    target, effects = row
    verdict = state.verdict
    if target in _UNDOING and verdict is None:
        verdict = _VERDICTS[trigger]
    if trigger is T.UNDONE and verdict is not None:
        target = verdict
    transitions = (Transition(state.phase, trigger, target, stimulus_id),)
    return OperationState(target, None if target.is_final else verdict), transitions, effects
