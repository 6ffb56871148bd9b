"""The kernel's machine, exhaustively over its table."""

from __future__ import annotations

from itertools import product
from uuid import UUID

import pytest

from ai.backend.common.errors import Conflict
from ai.backend.common.ids import AgentId, KernelId
from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.core.lifecycle.effects import ReleaseSlots, TakeSlots
from ai.backend.core.lifecycle.kernel import (
    HOLDING,
    PROGRESS,
    REQUESTS,
    TRANSITIONS,
    KernelState,
    KernelStep,
    KernelTrigger,
    check,
    is_orphan,
    step,
)
from ai.backend.core.lifecycle.transition import InvalidTransition, Transition

S, T = KernelStatus, KernelTrigger
AGENT = AgentId("i-1")
PAIRS = list(product(KernelStatus, KernelTrigger))


def make(status: KernelStatus, attempt: int = 1) -> KernelState:
    return KernelState(kernel_id=KernelId(UUID(int=1)), status=status, attempt=attempt, agent_id=AGENT)


def test_the_table_is_total() -> None:
    assert set(TRANSITIONS) == set(KernelStatus)


def test_there_is_a_trigger_for_every_status_an_agent_may_report() -> None:
    assert {KernelTrigger.for_observed(s) for s in KernelStatus} == {
        t for t in KernelTrigger if t.startswith("observed-")
    }


@pytest.mark.parametrize(("status", "trigger"), PAIRS)
def test_every_pair_does_what_the_table_says(status: KernelStatus, trigger: KernelTrigger) -> None:
    state = make(status)
    event = KernelStep(trigger=trigger, agent_id=AGENT, attempt=1)
    row = TRANSITIONS[status].get(trigger)
    if row is None and trigger in REQUESTS:
        with pytest.raises(InvalidTransition):
            step(state, event)
        return
    after, path, effects = step(state, event)
    if row is None:
        assert (after, path, effects) == (state, (), ())
        return
    target = row[0]
    assert path == (Transition(status, trigger, target),)
    assert after.status is target
    assert check(after) == []
    taken = [e for e in effects if isinstance(e, TakeSlots)]
    released = [e for e in effects if isinstance(e, ReleaseSlots)]
    assert len(taken) == (status not in HOLDING and target in HOLDING)
    assert len(released) == (status in HOLDING and target not in HOLDING)


@pytest.mark.parametrize("status", [s for s in KernelStatus if s.is_final])
def test_a_final_status_never_changes(status: KernelStatus) -> None:
    assert not TRANSITIONS[status]


def test_observations_only_move_forward() -> None:
    for i, status in enumerate(PROGRESS):
        for earlier in PROGRESS[1 : i + 1]:
            assert KernelTrigger.for_observed(earlier) not in TRANSITIONS[status]


@pytest.mark.parametrize("attempt", [0, 1, 3])
def test_another_attempt_is_ignored(attempt: int) -> None:
    state = make(KernelStatus.CREATING, attempt=2)
    event = KernelStep(trigger=KernelTrigger.OBSERVED_RUNNING, attempt=attempt)
    assert step(state, event) == (state, (), ())


def test_scheduling_starts_a_new_attempt_and_forgets_the_old_exit_code() -> None:
    state = KernelState(kernel_id=KernelId(UUID(int=1)), attempt=2, agent_id=AGENT, exit_code=1)
    after, _, effects = step(state, KernelStep(trigger=KernelTrigger.SCHEDULED, agent_id=AgentId("i-2")))
    assert (after.attempt, after.agent_id, after.exit_code) == (3, "i-2", None)
    assert effects == (TakeSlots(target=after.target),)


def test_scheduling_to_no_agent_is_refused() -> None:
    with pytest.raises(Conflict):
        step(make(KernelStatus.PENDING), KernelStep(trigger=KernelTrigger.SCHEDULED))


def test_a_reason_and_an_exit_code_stay_until_there_is_news() -> None:
    state, _, _ = step(
        make(KernelStatus.RUNNING),
        KernelStep(trigger=KernelTrigger.OBSERVED_TERMINATING, reason=KernelEventReason.TASK_FAILED, exit_code=3),
    )
    state, _, _ = step(state, KernelStep(trigger=KernelTrigger.OBSERVED_TERMINATED))
    assert (state.reason, state.exit_code) == (KernelEventReason.TASK_FAILED, 3)


@pytest.mark.parametrize(
    ("status", "attempt", "held", "orphan"),
    [
        (KernelStatus.RUNNING, 2, 2, False),
        (KernelStatus.RUNNING, 2, 1, True),
        (KernelStatus.RESTARTING, 2, 1, False),
        (KernelStatus.RESTARTING, 3, 1, True),
        (KernelStatus.TERMINATING, 2, 1, False),
        (KernelStatus.PENDING, 2, 2, True),
        (KernelStatus.TERMINATED, 2, 2, True),
    ],
)
def test_orphans(status: KernelStatus, attempt: int, held: int, orphan: bool) -> None:
    assert is_orphan(make(status, attempt), agent_id=AGENT, attempt=held) is orphan


def test_what_is_unknown_or_elsewhere_is_an_orphan() -> None:
    assert is_orphan(None, agent_id=AGENT, attempt=1)
    assert is_orphan(make(KernelStatus.RUNNING), agent_id=AgentId("i-2"), attempt=1)


def test_check_names_a_kernel_that_holds_without_an_agent() -> None:
    assert check(KernelState(kernel_id=KernelId(UUID(int=1)), status=KernelStatus.RUNNING))


def _expected() -> dict[tuple[KernelStatus, KernelTrigger], KernelStatus]:
    """The rules of the machine, from which the literal table was once written."""
    endings = {
        T.DESTROY_REQUESTED: S.TERMINATING,
        T.OBSERVED_TERMINATING: S.TERMINATING,
        T.OBSERVED_TERMINATED: S.TERMINATED,
        T.OBSERVED_ERROR: S.ERROR,
        T.OBSERVED_CANCELLED: S.CANCELLED,
        T.ABANDONED: S.ERROR,
    }
    up = (S.RUNNING, S.RESIZING, S.SUSPENDED)
    moves: dict[KernelStatus, dict[KernelTrigger, KernelStatus]] = {
        S.PENDING: {T.SCHEDULED: S.SCHEDULED, T.DESTROY_REQUESTED: S.CANCELLED},
        S.RESTARTING: {T.OBSERVED_RUNNING: S.RUNNING, **endings},
        S.TERMINATING: {
            T.OBSERVED_TERMINATED: S.TERMINATED,
            T.OBSERVED_ERROR: S.ERROR,
            T.OBSERVED_CANCELLED: S.CANCELLED,
            T.ABANDONED: S.TERMINATED,
            T.RETURNED: S.PENDING,
        },
    }
    for i, status in enumerate(PROGRESS[1:], 1):
        forward = {T.for_observed(later): later for later in (*PROGRESS[i + 1 :], S.RUNNING)}
        moves[status] = {**forward, T.RETURNED: S.PENDING, T.OBSERVED_PENDING: S.PENDING, **endings}
    moves[S.SCHEDULED][T.DISPATCHED] = S.PREPARING
    for status in up:
        others = {T.for_observed(other): other for other in up if other is not status}
        moves[status] = {**others, T.RESTART_REQUESTED: S.RESTARTING, T.RETURNED: S.PENDING, **endings}
    return {(status, trigger): to for status, rows in moves.items() for trigger, to in rows.items()}


def test_the_table_follows_the_rules() -> None:
    rows = {(status, trigger): to for status, moves in TRANSITIONS.items() for trigger, (to, _) in moves.items()}
    assert rows == _expected()
