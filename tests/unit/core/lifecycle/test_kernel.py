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
    TRANSITIONS,
    KernelState,
    KernelStep,
    KernelTrigger,
    check,
    is_orphan,
    step,
)
from ai.backend.core.lifecycle.outcomes import Outcome

AGENT = AgentId("i-1")
PAIRS = list(product(KernelStatus, KernelTrigger))


def make(status: KernelStatus, attempt: int = 1) -> KernelState:
    return KernelState(kernel_id=KernelId(UUID(int=1)), status=status, attempt=attempt, agent_id=AGENT)


def test_the_table_is_total() -> None:
    assert set(TRANSITIONS) == set(PAIRS)


def test_there_is_a_trigger_for_every_status_an_agent_may_report() -> None:
    assert {KernelTrigger.observed(s) for s in KernelStatus} == {t for t in KernelTrigger if t.startswith("observed-")}


@pytest.mark.parametrize(("status", "trigger"), PAIRS)
def test_every_pair_does_what_the_table_says(status: KernelStatus, trigger: KernelTrigger) -> None:
    state = make(status)
    event = KernelStep(trigger=trigger, agent_id=AGENT, attempt=1)
    target = TRANSITIONS[status, trigger]
    if target is Outcome.REFUSED:
        with pytest.raises(Conflict):
            step(state, event)
        return
    after, effects = step(state, event)
    if target is Outcome.IGNORED:
        assert (after, effects) == (state, ())
        return
    assert after.status is target
    assert check(after) == []
    taken = [e for e in effects if isinstance(e, TakeSlots)]
    released = [e for e in effects if isinstance(e, ReleaseSlots)]
    assert len(taken) == (status not in HOLDING and target in HOLDING)
    assert len(released) == (status in HOLDING and target not in HOLDING)


@pytest.mark.parametrize("status", [s for s in KernelStatus if s.is_final])
def test_a_final_status_never_changes(status: KernelStatus) -> None:
    assert all(isinstance(TRANSITIONS[status, trigger], Outcome) for trigger in KernelTrigger)


def test_observations_only_move_forward() -> None:
    for i, status in enumerate(PROGRESS):
        for earlier in PROGRESS[1 : i + 1]:
            assert TRANSITIONS[status, KernelTrigger.observed(earlier)] is Outcome.IGNORED


@pytest.mark.parametrize("attempt", [0, 1, 3])
def test_another_attempt_is_ignored(attempt: int) -> None:
    state = make(KernelStatus.CREATING, attempt=2)
    event = KernelStep(trigger=KernelTrigger.OBSERVED_RUNNING, attempt=attempt)
    assert step(state, event) == (state, ())


def test_scheduling_starts_a_new_attempt_and_forgets_the_old_exit_code() -> None:
    state = KernelState(kernel_id=KernelId(UUID(int=1)), attempt=2, agent_id=AGENT, exit_code=1)
    after, effects = step(state, KernelStep(trigger=KernelTrigger.SCHEDULED, agent_id=AgentId("i-2")))
    assert (after.attempt, after.agent_id, after.exit_code) == (3, "i-2", None)
    assert effects == (TakeSlots(target=after.target),)


def test_scheduling_to_no_agent_is_refused() -> None:
    with pytest.raises(Conflict):
        step(make(KernelStatus.PENDING), KernelStep(trigger=KernelTrigger.SCHEDULED))


def test_a_reason_and_an_exit_code_stay_until_there_is_news() -> None:
    state, _ = step(
        make(KernelStatus.RUNNING),
        KernelStep(trigger=KernelTrigger.OBSERVED_TERMINATING, reason=KernelEventReason.TASK_FAILED, exit_code=3),
    )
    state, _ = step(state, KernelStep(trigger=KernelTrigger.OBSERVED_TERMINATED))
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
