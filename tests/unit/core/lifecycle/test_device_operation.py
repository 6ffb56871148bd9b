"""The machine of an operation on an accelerator: its table, and what holds for every way through it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from ai.backend.common.device_operations import FINAL_OPERATION_PHASES, HOLDING_OPERATION_PHASES
from ai.backend.common.device_operations import OperationPhase as P
from ai.backend.core.lifecycle.device_operation import TRANSITIONS, OperationState, step
from ai.backend.core.lifecycle.device_operation import OperationEffect as E
from ai.backend.core.lifecycle.device_operation import OperationTrigger as T

SMOOTH = (T.ADMITTED, T.DEVICE_ACQUIRED, T.DRAINED, T.COMPLETED, T.CONFIRMED)


def run(*triggers: T, state: OperationState | None = None) -> tuple[OperationState, list[E]]:
    state = state or OperationState()
    effects: list[E] = []
    for trigger in triggers:
        state, _, more = step(state, trigger)
        effects += more
    return state, effects


def test_a_smooth_operation() -> None:
    assert run(*SMOOTH) == (OperationState(P.SUCCEEDED), [E.ORDER, E.RELEASE])


def test_a_repetition_gets_another_order() -> None:
    state, effects = run(*SMOOTH[:3], T.FAILED_FOR_NOW, T.RETRY_DUE, T.COMPLETED, T.CONFIRMED)
    assert (state.phase, effects) == (P.SUCCEEDED, [E.ORDER, E.ORDER, E.RELEASE])


#: Where the cancellation comes -> what the executor says then, the end, and the effects since.
CANCEL_POINTS = [
    ((), (), P.CANCELLED, []),
    (SMOOTH[:1], (), P.CANCELLED, [E.RELEASE]),
    (SMOOTH[:2], (), P.CANCELLED, [E.RELEASE]),
    (SMOOTH[:3], (T.ABORTED, T.UNDONE), P.CANCELLED, [E.ABORT, E.UNDO, E.RELEASE]),
    (SMOOTH[:3], (T.COMPLETED, T.UNDONE), P.CANCELLED, [E.ABORT, E.UNDO, E.RELEASE]),
    (SMOOTH[:3], (T.FAILED, T.UNDONE), P.CANCELLED, [E.ABORT, E.UNDO, E.RELEASE]),
    (SMOOTH[:3], (T.FAILED_FOR_NOW, T.UNDONE), P.CANCELLED, [E.ABORT, E.UNDO, E.RELEASE]),
    (SMOOTH[:3], (T.EXECUTOR_LOST,), P.FAILED, [E.ABORT, E.QUARANTINE, E.RELEASE]),
    (SMOOTH[:3], (T.ABORTED, T.UNDO_FAILED), P.FAILED, [E.ABORT, E.UNDO, E.QUARANTINE, E.RELEASE]),
    (SMOOTH[:3], (T.ABORTED, T.EXECUTOR_LOST), P.FAILED, [E.ABORT, E.UNDO, E.QUARANTINE, E.RELEASE]),
    ((*SMOOTH[:3], T.FAILED_FOR_NOW), (T.UNDONE,), P.CANCELLED, [E.UNDO, E.RELEASE]),
    (SMOOTH[:4], (T.UNDONE,), P.CANCELLED, [E.UNDO, E.RELEASE]),
    ((*SMOOTH[:3], T.FAILED), (T.UNDONE,), P.FAILED, [E.RELEASE]),
    ((*SMOOTH[:3], T.DEADLINE_PASSED), (T.ABORTED, T.UNDONE), P.FAILED, [E.UNDO, E.RELEASE]),
    (SMOOTH, (), P.SUCCEEDED, []),
]


@pytest.mark.parametrize(("before", "after", "end", "effects"), CANCEL_POINTS)
def test_every_point_of_cancellation(before: tuple[T, ...], after: tuple[T, ...], end: P, effects: list[E]) -> None:
    begun, _ = run(*before)
    assert run(T.CANCEL_REQUESTED, *after, state=begun) == (OperationState(end), effects)
    assert run(T.CANCEL_REQUESTED, T.CANCEL_REQUESTED, *after, state=begun) == (OperationState(end), effects)


def test_the_cancellation_has_a_point_in_every_phase() -> None:
    assert {run(*before)[0].phase for before, *_ in CANCEL_POINTS} >= set(P) - {P.REFUSED, P.FAILED, P.CANCELLED}


@pytest.mark.parametrize(("phase", "trigger"), list(product(sorted(FINAL_OPERATION_PHASES), T)))
def test_what_has_ended_stays_as_it_is(phase: P, trigger: T) -> None:
    assert step(OperationState(phase), trigger) == (OperationState(phase), (), ())


def _paths() -> Iterator[tuple[OperationState, bool, list[E]]]:
    """Every transition of every reachable state: the state before, whether it held the device, and the effects."""
    todo, seen = [OperationState()], set()
    while todo:
        state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        for trigger in T:
            target, path, effects = step(state, trigger)
            if path:
                yield target, state.phase.holds_device, list(effects)
                todo.append(target)


def test_every_end_frees_the_device_and_nothing_else_does() -> None:
    for target, held_device, effects in _paths():
        if target.phase in FINAL_OPERATION_PHASES:
            assert E.RELEASE in effects or not held_device, target
            assert target.verdict is None
        else:
            assert E.RELEASE not in effects
        if target.phase in {P.CANCELLING, P.ROLLING_BACK}:
            assert target.verdict in {P.FAILED, P.CANCELLED}
        if {E.ORDER, E.UNDO, E.ABORT} & set(effects):
            assert target.phase in HOLDING_OPERATION_PHASES


def test_a_lost_executor_always_leaves_a_quarantined_device() -> None:
    for phase, rows in TRANSITIONS.items():
        if T.EXECUTOR_LOST in rows:
            assert rows[T.EXECUTOR_LOST] == (P.FAILED, (E.QUARANTINE, E.RELEASE)), phase


def test_every_phase_can_end() -> None:
    ends: set[P] = set(FINAL_OPERATION_PHASES)
    while more := {p for p, rows in TRANSITIONS.items() if p not in ends and {row[0] for row in rows.values()} & ends}:
        ends |= more
    assert ends == set(P)
