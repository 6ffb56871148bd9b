"""The manager's aggregate follows the machines of the core."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ai.backend.common.errors import Conflict
from ai.backend.common.ids import AgentId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import KernelEventReason, KernelStatus, SessionStatus, SessionType
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.effects import CreateKernels, DestroyKernels, RestartKernels
from ai.backend.core.lifecycle.events import (
    KernelObserved,
    SessionCreationFailed,
    SessionDestroyRequested,
    SessionDispatched,
    SessionEvent,
    SessionRestartRequested,
    SessionScheduled,
    SessionStartOverRequested,
)
from ai.backend.manager.sessions.changes import slot_deltas
from ai.backend.manager.sessions.model import STARTED_OVER, Session
from ai.backend.manager.sessions.transitions import advance, combine_changes, with_largest_amounts
from tests.contract.store.builders import NOW, SLOTS, make_session

LATER = NOW + timedelta(seconds=7)
AGENT = AgentId("agent-1")


def scheduled(session: Session) -> SessionScheduled:
    return SessionScheduled(agents={k.id: AGENT for k in session.kernels})


def seen(session: Session, status: KernelStatus, *, index: int = 0, exit_code: int | None = None) -> KernelObserved:
    kernel = session.kernels[index]
    return KernelObserved(kernel_id=kernel.id, attempt=1, status=status, exit_code=exit_code)


def after(session: Session, *events: SessionEvent) -> Session:
    change = advance(session, *events, now=LATER)
    assert change is not None
    return change.new


def test_scheduling_takes_slots_and_tells() -> None:
    session = make_session(size=2)
    change = advance(session, scheduled(session), now=LATER)
    assert change is not None
    assert slot_deltas([change]) == {AGENT: SLOTS * 2}
    assert [e.name for e in change.events] == ["session_scheduled"]
    assert change.events[0].payload["sessionName"] == "mine"
    new = change.new
    assert (new.status, new.scheduled_at, new.status_changed, new.status_data) == (
        SessionStatus.SCHEDULED, LATER, LATER, {},
    )  # fmt: skip
    assert new.status_history["SCHEDULED"] == LATER.isoformat()
    assert {k.attempt for k in new.kernels} == {1}


def test_running_and_ending_leave_times_and_nothing_held() -> None:
    session = make_session()
    running = after(session, scheduled(session), SessionDispatched(), seen(session, KernelStatus.RUNNING))
    assert (running.started_at, running.main.started_at) == (LATER, LATER)
    assert {"SCHEDULED", "PREPARING", "RUNNING"} <= set(running.status_history)
    asked = advance(running, SessionDestroyRequested(), now=LATER)
    assert asked is not None
    assert [type(command) for command in asked.commands] == [DestroyKernels]
    change = advance(asked.new, seen(session, KernelStatus.TERMINATED, exit_code=0), now=LATER)
    assert change is not None
    assert slot_deltas([change]) == {AGENT: SLOTS * -1}
    assert change.new.main.occupied_slots == ResourceSlot()
    assert (change.new.terminated_at, change.new.main.exit_code) == (LATER, 0)
    assert change.events[-1].name == "session_terminated"
    whole = combine_changes(asked, change)
    assert (whole.old, whole.new, len(whole.events)) == (running, change.new, len(asked.events) + len(change.events))


def test_a_failure_for_now_waits_longer_each_time() -> None:
    session = make_session()
    failed = SessionCreationFailed(
        kernel_ids=frozenset({session.main.id}), reason=KernelEventReason.CREATION_DEFERRED, retryable=True
    )
    pauses = []
    for _ in range(3):
        session = after(session, scheduled(session))
        session = after(session, failed)
        assert session.status is SessionStatus.PENDING
        assert session.main.holds == ResourceSlot()
        assert session.not_before is not None
        pauses.append((session.not_before - LATER).total_seconds())
    assert pauses == [0.5, 1.0, 2.0]


def test_a_kernel_of_a_gang_that_failed_waits_as_if_it_had_not_started() -> None:
    session = make_session(size=2)
    session = after(session, scheduled(session), seen(session, KernelStatus.RUNNING))
    assert session.main.started_at == LATER
    refused = KernelObserved(
        kernel_id=session.kernels[1].id,
        attempt=1,
        status=KernelStatus.PENDING,
        reason=KernelEventReason.CREATION_DEFERRED,
    )
    session = after(session, refused)
    assert session.status is SessionStatus.PENDING
    assert [(k.started_at, k.exit_code) for k in session.kernels] == [(None, None)] * 2


def test_what_changes_nothing_is_no_change() -> None:
    session = make_session()
    assert advance(session, seen(session, KernelStatus.RUNNING), now=LATER) is None
    cancelled = after(session, SessionDestroyRequested())
    assert cancelled.status is SessionStatus.CANCELLED
    assert advance(cancelled, SessionDestroyRequested(), now=LATER) is None
    with pytest.raises(Conflict):
        advance(session, SessionRestartRequested(), now=LATER)


def test_the_commands_of_a_change_follow_from_its_step() -> None:
    session = make_session()
    placed = advance(session, scheduled(session), now=LATER)
    assert placed is not None
    assert placed.commands == (CreateKernels(session_id=session.id),)
    running = after(placed.new, seen(session, KernelStatus.RUNNING))
    restarting = advance(running, SessionRestartRequested(), now=LATER)
    assert restarting is not None
    assert restarting.commands == (RestartKernels(session_id=session.id),)
    ending = after(running, SessionDestroyRequested())
    forced = advance(ending, SessionDestroyRequested(forced=True), now=LATER)
    assert forced is not None, "a forced end is sent again"
    assert not forced.is_stored
    (command,) = forced.commands
    assert isinstance(command, DestroyKernels)
    assert command.forced


def test_a_session_that_starts_over_says_so_itself() -> None:
    session = replace(make_session(), type=SessionType.BATCH)
    running = after(session, scheduled(session), seen(session, KernelStatus.RUNNING))
    leaving = after(running, SessionStartOverRequested(stimulus_id="schedule loop"))
    assert (leaving.status, leaving.starting_over) == (SessionStatus.TERMINATING, True)
    assert leaving.recent_transitions[-1].stimulus_id == "schedule loop"
    waiting = after(leaving, seen(session, KernelStatus.TERMINATED))
    assert (waiting.status, waiting.starting_over, waiting.not_before) == (SessionStatus.PENDING, False, None)
    assert waiting.status_data[STARTED_OVER] == {"times": 1, "attempts": 1}
    ended = after(leaving, SessionDestroyRequested())
    assert (ended.status, ended.starting_over) == (SessionStatus.TERMINATING, False)
    # The reason alone decides nothing: only the machine's state does.
    odd = replace(leaving, starting_over=False)
    assert after(odd, seen(session, KernelStatus.TERMINATED)).status is SessionStatus.TERMINATED


def test_the_history_follows_the_path() -> None:
    session = make_session()
    running = after(session, scheduled(session), seen(session, KernelStatus.RUNNING))
    ended = after(running, seen(session, KernelStatus.TERMINATED))
    assert list(ended.status_history) == ["SCHEDULED", "RUNNING", "TERMINATING", "TERMINATED"]


def test_a_batch_session_tells_its_exit_code() -> None:
    session = replace(make_session(), type=SessionType.BATCH)
    running = after(session, scheduled(session), seen(session, KernelStatus.RUNNING))
    change = advance(running, seen(session, KernelStatus.TERMINATED, exit_code=3), now=LATER)
    assert change is not None
    failure = next(e for e in change.events if e.name == "session_failure")
    assert (failure.payload["exitCode"], failure.payload["result"]) == (3, "FAILURE")
    kernel = next(e for e in change.events if e.name == "kernel_terminated")
    assert kernel.payload["kernelId"] == str(session.main.id)


def test_a_kernel_requests_what_was_placed_until_it_waits_again() -> None:
    """An alternative with an amount of its own is chosen at each placement."""
    texts = ('model == "A" && amount("cuda.device", 1)', 'amount("cuda.device", 4)')
    host, gpus = ResourceSlot.parse({"cpu": "1"}), "cuda.device"
    most, least = (host + ResourceSlot.parse({gpus: amount}) for amount in ("4", "1"))
    session = make_session(size=2)
    kernels = (
        replace(session.kernels[0], requested_slots=most),
        replace(session.kernels[1], requested_slots=host),
    )
    session = replace(session, device_requests=texts, kernels=kernels)
    placed = {session.main.id: {"requested_slots": least}}
    change = advance(session, scheduled(session), now=LATER, placements=placed)
    assert change is not None
    assert slot_deltas([change]) == {AGENT: least + host}
    assert [(k.requested_slots, k.occupied_slots) for k in change.new.kernels] == [(least, least), (host, host)]
    assert with_largest_amounts(change.new).kernels[0].requested_slots == most
    refused = SessionCreationFailed(
        kernel_ids=frozenset(kernel.id for kernel in session.kernels),
        reason=KernelEventReason.CREATION_DEFERRED,
        retryable=True,
    )
    back = after(change.new, SessionDispatched(), refused)
    assert back.status is SessionStatus.PENDING
    assert [(k.requested_slots, k.occupied_slots) for k in back.kernels] == [
        (most, ResourceSlot()), (host, ResourceSlot()),
    ]  # fmt: skip
    running = after(
        change.new, SessionDispatched(), *(seen(session, KernelStatus.RUNNING, index=index) for index in (0, 1))
    )
    evicted = after(running, SessionStartOverRequested())
    assert evicted.main.requested_slots == least, "it holds these until it has ended"
    again = after(evicted, *(seen(session, KernelStatus.TERMINATED, index=index) for index in (0, 1)))
    assert (again.status, again.main.requested_slots) == (SessionStatus.PENDING, most)
