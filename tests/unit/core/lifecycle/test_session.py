"""The session's machine: its table, and the stories that it tells of several kernels."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.common.errors import Conflict
from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.states import (
    FINAL_SESSION_STATUSES,
    KernelEventReason,
    KernelStatus,
    SessionResult,
    SessionStatus,
    SessionType,
)
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.effects import (
    CreateKernels,
    DestroyKernels,
    Effect,
    EmitEvent,
    ReleaseSlots,
    RestartKernels,
    TakeSlots,
)
from ai.backend.core.lifecycle.events import (
    KernelObserved,
    KernelsAbandoned,
    SessionCreationFailed,
    SessionDegraded,
    SessionDestroyRequested,
    SessionDispatched,
    SessionEvent,
    SessionRecovered,
    SessionRestartRequested,
    SessionScheduled,
    SessionStartOverRequested,
)
from ai.backend.core.lifecycle.kernel import KernelState
from ai.backend.core.lifecycle.session import (
    REQUESTS,
    TRANSITIONS,
    SessionPhase,
    SessionState,
    SessionTrigger,
    check,
    step,
    trigger_from_statuses,
)
from ai.backend.core.lifecycle.transition import MAX_RECENT_TRANSITIONS, InvalidTransition, Transition

KS = KernelStatus
SS = SessionStatus
R = KernelEventReason


def kid(n: int) -> KernelId:
    return KernelId(UUID(int=n))


def pending(size: int = 1, **changes: object) -> SessionState:
    kernels = tuple(KernelState(kernel_id=kid(n), is_main=n == 0) for n in range(size))
    return replace(SessionState(session_id=SessionId(UUID(int=99)), kernels=kernels), **changes)  # type: ignore[arg-type]  # a builder


def places(state: SessionState) -> SessionScheduled:
    return SessionScheduled(agents={k.kernel_id: AgentId(f"i-{n}") for n, k in enumerate(state.kernels)})


def run(state: SessionState, *events: SessionEvent) -> tuple[SessionState, list[Effect]]:
    effects: list[Effect] = []
    for event in events:
        state, _, more = step(state, event)
        assert check(state) == []
        effects += more
    return state, effects


def seen(n: int, status: KernelStatus, *, attempt: int = 1, **more: object) -> KernelObserved:
    return KernelObserved(kernel_id=kid(n), attempt=attempt, status=status, **more)  # type: ignore[arg-type]  # a builder


def running(size: int = 1, **changes: object) -> SessionState:
    state = pending(size, **changes)
    state, _ = run(state, places(state), SessionDispatched(), *(seen(n, KS.RUNNING) for n in range(size)))
    assert state.status is SS.RUNNING
    return state


def names(effects: list[Effect]) -> list[str]:
    return [e.name for e in effects if isinstance(e, EmitEvent)]


def of(kind: type, effects: list[Effect]) -> list[Effect]:
    return [e for e in effects if isinstance(e, kind)]


def test_every_phase_has_its_rows_and_every_public_status_a_phase() -> None:
    assert set(TRANSITIONS) == set(SessionPhase)
    assert {phase.status for phase in SessionPhase} == set(SessionStatus)


def test_every_phase_can_be_reached_from_pending() -> None:
    reached = {SessionPhase.PENDING}
    while True:
        more = {target for phase in reached for target, _ in TRANSITIONS[phase].values() if target} - reached
        if not more:
            break
        reached |= more
    assert reached == set(SessionPhase)


@pytest.mark.parametrize("status", sorted(FINAL_SESSION_STATUSES))
def test_a_final_status_never_changes(status: SessionStatus) -> None:
    assert not TRANSITIONS[SessionPhase(status.value)]


def test_the_life_of_a_session_of_one_kernel() -> None:
    state = pending()
    state, effects = run(state, places(state))
    target = state.kernels[0].target
    assert effects == [
        EmitEvent(name="session_scheduled", session_id=state.session_id),
        TakeSlots(target=target),
        CreateKernels(session_id=state.session_id),
    ]
    stages = []
    for event in (SessionDispatched(), seen(0, KS.PULLING), seen(0, KS.PREPARED), seen(0, KS.CREATING)):
        state, _ = run(state, event)
        stages.append(state.status)
    assert stages == [SS.PREPARING, SS.PULLING, SS.PREPARED, SS.CREATING]
    state, effects = run(state, seen(0, KS.RUNNING))
    assert (state.status, names(effects)) == (SS.RUNNING, ["kernel_started", "session_started"])
    state, effects = run(state, SessionDestroyRequested())
    assert state.status is SS.TERMINATING
    assert of(DestroyKernels, effects) == [
        DestroyKernels(session_id=state.session_id, targets=(target,), reason=R.USER_REQUESTED)
    ]
    state, effects = run(state, seen(0, KS.TERMINATED, reason=R.USER_REQUESTED, exit_code=0))
    assert (state.status, state.reason) == (SS.TERMINATED, R.USER_REQUESTED)
    assert of(ReleaseSlots, effects) == [ReleaseSlots(target=target)]
    assert names(effects)[-1] == "session_terminated"


def test_a_session_is_as_far_as_its_slowest_kernel() -> None:
    state = pending(2)
    state, _ = run(state, places(state), SessionDispatched(), seen(0, KS.RUNNING), seen(1, KS.PULLING))
    assert state.status is SS.PULLING
    state, _ = run(state, seen(1, KS.RUNNING))
    assert state.status is SS.RUNNING


def test_pending_and_destroyed_is_cancelled_at_once() -> None:
    state, effects = run(pending(2), SessionDestroyRequested())
    assert state.status is SS.CANCELLED
    assert not of(DestroyKernels, effects)
    assert "session_cancelled" in names(effects)


def test_one_failed_kernel_ends_the_others() -> None:
    state = pending(3)
    state, effects = run(
        state, places(state), SessionDispatched(), seen(0, KS.RUNNING), seen(1, KS.ERROR, reason=R.FAILED_TO_CREATE)
    )
    assert state.status is SS.TERMINATING
    assert state.reason is R.FAILED_TO_CREATE
    (destroy,) = of(DestroyKernels, effects)
    assert isinstance(destroy, DestroyKernels)
    assert [t.kernel_id for t in destroy.targets] == [kid(0), kid(2)]
    assert destroy.reason is R.SIBLING_FAILED
    state, _ = run(state, seen(0, KS.TERMINATED), seen(2, KS.CANCELLED))
    assert (state.status, state.reason) == (SS.ERROR, R.FAILED_TO_CREATE)


def test_a_kernel_that_ends_by_itself_ends_its_session() -> None:
    state, effects = run(running(), seen(0, KS.TERMINATED, reason=R.SELF_TERMINATED, exit_code=0))
    assert (state.status, state.reason) == (SS.TERMINATED, R.SELF_TERMINATED)
    assert names(effects) == ["kernel_terminated", "session_terminating", "session_terminated"]
    assert not of(DestroyKernels, effects)


@pytest.mark.parametrize(
    ("status", "reason", "exit_code", "result"),
    [
        (KS.TERMINATED, R.TASK_FINISHED, 0, SessionResult.SUCCESS),
        (KS.TERMINATED, R.TASK_FAILED, 1, SessionResult.FAILURE),
        (KS.TERMINATED, R.TASK_TIMEOUT, None, SessionResult.FAILURE),
        (KS.ERROR, R.AGENT_LOST, None, SessionResult.FAILURE),
        (KS.TERMINATED, R.USER_REQUESTED, 137, SessionResult.UNDEFINED),
    ],
)
def test_the_result_of_a_batch_session(
    status: KernelStatus, reason: KernelEventReason, exit_code: int | None, result: SessionResult
) -> None:
    state = running(2, session_type=SessionType.BATCH)
    state, effects = run(state, seen(0, KS.TERMINATING, reason=reason))
    state, more = run(state, seen(0, status, reason=reason, exit_code=exit_code))
    assert state.status is SS.TERMINATING
    state, even_more = run(state, seen(1, KS.TERMINATED))
    assert state.result is result
    told = [n for n in names(effects + more + even_more) if n in ("session_success", "session_failure")]
    assert told == ([] if result is SessionResult.UNDEFINED else [f"session_{result.lower()}"])


def test_an_interactive_session_has_no_result() -> None:
    state, _ = run(running(), seen(0, KS.TERMINATED, reason=R.TASK_FINISHED, exit_code=0))
    assert state.result is SessionResult.UNDEFINED


def test_a_deferred_creation_goes_back_to_the_scheduler_whole() -> None:
    state = pending(2)
    state, _ = run(state, places(state), SessionDispatched(), seen(0, KS.RUNNING))
    state, effects = run(state, seen(1, KS.PENDING, reason=R.CREATION_DEFERRED))
    assert state.status is SS.PENDING
    assert len(of(ReleaseSlots, effects)) == 2
    (destroy,) = of(DestroyKernels, effects)
    assert isinstance(destroy, DestroyKernels)
    assert {t.attempt for t in destroy.targets} == {1}
    late, effects = run(state, seen(0, KS.RUNNING), seen(0, KS.TERMINATED))
    assert (late, effects) == (state, [])
    state, _ = run(state, places(state))
    assert {k.attempt for k in state.kernels} == {2}


def test_deferrals_are_bounded() -> None:
    state = pending(2, max_attempts=2)
    deferred = seen(1, KS.PENDING, reason=R.CREATION_DEFERRED)
    state, _ = run(state, places(state), deferred, places(state), replace(deferred, attempt=2))
    assert (state.status, state.reason) == (SS.TERMINATING, R.CREATION_DEFERRED)
    state, _ = run(state, seen(0, KS.TERMINATED, attempt=2))
    assert state.status is SS.ERROR


@pytest.mark.parametrize(("retryable", "status"), [(True, SS.PENDING), (False, SS.TERMINATING)])
def test_a_refused_creation(retryable: bool, status: SessionStatus) -> None:
    state = pending(2)
    failed = SessionCreationFailed(kernel_ids=frozenset({kid(1)}), reason=R.CREATION_DENIED, retryable=retryable)
    state, effects = run(state, places(state), failed)
    assert state.status is status
    assert len(of(DestroyKernels, effects)) == 1


def test_a_refusal_that_comes_late_changes_nothing() -> None:
    failed = SessionCreationFailed(kernel_ids=frozenset({kid(0)}), reason=R.CREATION_DENIED, retryable=True)
    state = running()
    assert run(state, failed) == (state, [])


def test_a_restart_keeps_slots_and_ignores_the_old_incarnation() -> None:
    state, effects = run(running(), SessionRestartRequested())
    assert state.status is SS.RESTARTING
    (restart,) = of(RestartKernels, effects)
    assert isinstance(restart, RestartKernels)
    assert not of(ReleaseSlots, effects)
    same, _ = run(state, seen(0, KS.TERMINATED, attempt=1))
    assert same == state
    state, _ = run(state, seen(0, KS.RUNNING, attempt=2))
    assert state.status is SS.RUNNING
    state, effects = run(state, seen(0, KS.TERMINATED, attempt=2))
    assert state.status is SS.TERMINATED
    assert len(of(ReleaseSlots, effects)) == 1


def test_a_restart_of_several_kernels_waits_for_all() -> None:
    state, _ = run(running(2), SessionRestartRequested(), seen(0, KS.RUNNING, attempt=2))
    assert state.status is SS.RESTARTING
    state, _ = run(state, seen(1, KS.RUNNING, attempt=2))
    assert state.status is SS.RUNNING


@pytest.mark.parametrize("event", [SessionRestartRequested(), SessionScheduled(agents={kid(0): AgentId("i-0")})])
def test_requests_out_of_place_are_refused(event: SessionEvent) -> None:
    ended, _ = run(running(), SessionDestroyRequested())
    gone, _ = run(ended, seen(0, KS.TERMINATED))
    for state in (ended, gone):
        with pytest.raises(InvalidTransition):
            step(state, event)


def test_a_plan_that_forgets_a_kernel_is_refused() -> None:
    with pytest.raises(Conflict):
        step(pending(2), SessionScheduled(agents={kid(0): AgentId("i-0")}))


def test_a_forced_destruction_is_repeated_and_a_polite_one_is_not() -> None:
    state, _ = run(running(), SessionDestroyRequested())
    assert run(state, SessionDestroyRequested()) == (state, [])
    state, effects = run(state, SessionDestroyRequested(reason=R.FORCE_TERMINATED, forced=True))
    (destroy,) = effects
    assert isinstance(destroy, DestroyKernels)
    assert destroy.forced
    assert state.reason is R.USER_REQUESTED


def test_degraded_and_back() -> None:
    state, _ = run(running(2), SessionDegraded())
    assert state.status is SS.RUNNING_DEGRADED
    state, _ = run(state, SessionRecovered())
    assert state.status is SS.RUNNING


def test_an_agent_given_up_ends_its_sessions() -> None:
    state, effects = run(running(2), KernelsAbandoned(kernel_ids=frozenset({kid(1)})))
    assert (state.status, state.reason) == (SS.TERMINATING, R.AGENT_LOST)
    assert len(of(ReleaseSlots, effects)) == 1
    state, _ = run(state, KernelsAbandoned(kernel_ids=frozenset({kid(0)})))
    assert state.status is SS.ERROR


def test_the_destruction_of_a_kernel_on_a_lost_agent_ends_when_it_is_given_up() -> None:
    state, _ = run(running(), SessionDestroyRequested(), KernelsAbandoned(kernel_ids=frozenset({kid(0)})))
    assert state.status is SS.TERMINATED


OVER = SessionStartOverRequested()


def gone(n: int, reason: KernelEventReason = R.RESCHEDULED, exit_code: int | None = None) -> KernelObserved:
    return seen(n, KS.TERMINATED, reason=reason, exit_code=exit_code)


def test_a_session_that_starts_over_waits_again_once_nothing_of_it_is_left() -> None:
    state, effects = run(running(2, session_type=SessionType.BATCH), OVER)
    assert (state.status, of(ReleaseSlots, effects)) == (SS.TERMINATING, [])
    state, effects = run(state, gone(1, exit_code=143))
    assert (state.status, [k.status for k in state.kernels]) == (SS.TERMINATING, [KS.TERMINATING, KS.PENDING])
    assert len(of(ReleaseSlots, effects)) == 1
    state, effects = run(state, gone(0, exit_code=143))
    assert (state.status, state.result, state.reason) == (SS.PENDING, SessionResult.UNDEFINED, R.RESCHEDULED)
    assert names(effects) == ["session_enqueued"]
    state, _ = run(state, places(state), gone(0))
    assert {(k.status, k.attempt) for k in state.kernels} == {(KS.SCHEDULED, 2)}, "the old attempt says nothing more"


def test_the_user_may_end_a_session_that_was_to_start_over() -> None:
    state, _ = run(running(2, session_type=SessionType.BATCH), OVER, gone(1), SessionDestroyRequested())
    assert (state.status, [k.status for k in state.kernels]) == (SS.TERMINATING, [KS.TERMINATING, KS.CANCELLED])
    state, _ = run(state, gone(0, exit_code=143))
    assert (state.status, state.result, state.reason) == (SS.TERMINATED, SessionResult.UNDEFINED, R.USER_REQUESTED)


@pytest.mark.parametrize(
    ("reason", "code", "result"),
    [(R.TASK_FINISHED, 0, SessionResult.SUCCESS), (R.TASK_FAILED, 3, SessionResult.FAILURE)],
)
def test_a_program_that_was_over_before_it_was_stopped_does_not_start_over(
    reason: KernelEventReason, code: int, result: SessionResult
) -> None:
    state, _ = run(running(2, session_type=SessionType.BATCH), OVER, gone(1), gone(0, reason, exit_code=code))
    assert (state.status, state.result) == (SS.TERMINATED, result)


def test_a_session_on_a_lost_agent_starts_over_and_one_that_waits_already_goes_on_waiting() -> None:
    state, _ = run(running(1, session_type=SessionType.BATCH), OVER, KernelsAbandoned(kernel_ids=frozenset({kid(0)})))
    assert state.status is SS.PENDING
    assert run(state, OVER) == (state, [])


def test_nothing_adds_up_to_nothing() -> None:
    assert trigger_from_statuses([]) is None


EVENTS = st.one_of(
    st.builds(SessionScheduled, agents=st.just({kid(0): AgentId("i-0"), kid(1): AgentId("i-1")})),
    st.builds(SessionDispatched),
    st.builds(
        SessionCreationFailed,
        kernel_ids=st.frozensets(st.sampled_from([kid(0), kid(1)]), min_size=1),
        reason=st.just(R.FAILED_TO_CREATE),
        retryable=st.booleans(),
    ),
    st.builds(SessionRestartRequested),
    st.builds(SessionDestroyRequested, forced=st.booleans()),
    st.builds(SessionStartOverRequested),
    st.builds(SessionDegraded),
    st.builds(SessionRecovered),
    st.builds(
        KernelObserved,
        kernel_id=st.sampled_from([kid(0), kid(1)]),
        attempt=st.integers(0, 4),
        status=st.sampled_from(KernelStatus),
        reason=st.sampled_from([R.UNKNOWN, R.TASK_FINISHED]),
        exit_code=st.none() | st.integers(0, 255),
    ),
    st.builds(KernelsAbandoned, kernel_ids=st.frozensets(st.sampled_from([kid(0), kid(1)]))),
)


@given(st.lists(EVENTS, max_size=30), st.sampled_from(SessionType))
def test_no_order_of_events_breaks_an_invariant(events: list[SessionEvent], session_type: SessionType) -> None:
    state = pending(2, session_type=session_type, max_attempts=2)
    held: dict[KernelId, int] = {kid(0): 0, kid(1): 0}
    was_final: SessionState | None = None
    for event in events:
        try:
            state, path, effects = step(state, event)
        except Conflict:
            continue
        assert check(state) == []
        assert path == state.recent_transitions[len(state.recent_transitions) - len(path) :], (
            "the recent transitions end with the path"
        )
        assert [t.after for t in path][:-1] == [t.before for t in path][1:], "a path has no gap"
        for effect in effects:
            if isinstance(effect, TakeSlots):
                held[effect.target.kernel_id] += 1
            elif isinstance(effect, ReleaseSlots):
                held[effect.target.kernel_id] -= 1
        assert set(held.values()) <= {0, 1}, "slots are taken once and released once"
        if was_final is not None:
            assert state == was_final
        if state.status.is_final:
            was_final = state
            assert set(held.values()) == {0}


@pytest.mark.parametrize(
    ("request_", "kernel", "session"),
    [
        (SessionDestroyRequested(), KS.TERMINATED, SS.TERMINATED),
        (SessionRestartRequested(), KS.ERROR, SS.ERROR),
    ],
)
def test_what_is_given_back_too_late_has_ended(
    request_: SessionEvent, kernel: KernelStatus, session: SessionStatus
) -> None:
    state, _ = run(running(), request_)
    attempt = state.kernels[0].attempt
    state, effects = run(state, seen(0, KS.PENDING, reason=R.CREATION_DEFERRED, attempt=attempt))
    assert (state.kernels[0].status, state.status) == (kernel, session)
    assert len(of(ReleaseSlots, effects)) == 1


def test_a_step_returns_the_path_and_the_story_keeps_it() -> None:
    state = pending()
    state, path, _ = step(state, replace(places(state), stimulus_id="schedule loop"))
    assert path == (Transition("PENDING", "scheduled", "SCHEDULED", "schedule loop"),)
    state, path, _ = step(state, seen(0, KS.TERMINATED, reason=R.SELF_TERMINATED, stimulus_id="report 7 of i-0"))
    assert [(t.trigger, t.after) for t in path] == [
        ("kernel-ended", "TERMINATING"),
        ("kernels-terminated", "TERMINATED"),
    ]
    assert len(state.recent_transitions) == 3
    with pytest.raises(InvalidTransition) as refused:
        step(state, SessionRestartRequested(stimulus_id="request of AKIA"))
    e = refused.value
    assert (e.state, e.trigger, e.stimulus_id, e.recent_transitions) == (
        "TERMINATED", "restart-requested", "request of AKIA", state.recent_transitions,
    )  # fmt: skip
    assert "report 7 of i-0" in e.explain()
    assert e.data["status"] == "TERMINATED"


def test_the_story_is_bounded() -> None:
    state = running()
    for _ in range(MAX_RECENT_TRANSITIONS):
        state, _ = run(state, SessionDegraded(), SessionRecovered())
    assert len(state.recent_transitions) == MAX_RECENT_TRANSITIONS


def test_clients_see_a_session_that_starts_over_terminate_once() -> None:
    state, effects = run(running(session_type=SessionType.BATCH), OVER)
    assert (state.phase, state.status) == (SessionPhase.STARTING_OVER, SS.TERMINATING)
    assert names(effects)[0] == "session_terminating"
    state, effects = run(state, SessionDestroyRequested())
    assert (state.phase, names(effects)) == (SessionPhase.TERMINATING, [])


ROWS = {
    "PENDING": "scheduled>SCHEDULED destroy-requested>CANCELLED",
    "SCHEDULED": "dispatched>PREPARING creation-deferred>PENDING creation-failed kernel-observed kernel-over"
    " program-over kernels-abandoned kernels-preparing>PREPARING kernels-pulling>PULLING kernels-prepared>PREPARED"
    " kernels-creating>CREATING kernels-running>RUNNING destroy-requested>TERMINATING"
    " start-over-requested>STARTING_OVER kernel-ended>TERMINATING",
    "PREPARING": "creation-deferred>PENDING creation-failed kernel-observed kernel-over program-over kernels-abandoned"
    " kernels-pulling>PULLING kernels-prepared>PREPARED kernels-creating>CREATING kernels-running>RUNNING"
    " destroy-requested>TERMINATING start-over-requested>STARTING_OVER kernel-ended>TERMINATING",
    "PULLING": "creation-deferred>PENDING creation-failed kernel-observed kernel-over program-over kernels-abandoned"
    " kernels-prepared>PREPARED kernels-creating>CREATING kernels-running>RUNNING destroy-requested>TERMINATING"
    " start-over-requested>STARTING_OVER kernel-ended>TERMINATING",
    "PREPARED": "creation-deferred>PENDING creation-failed kernel-observed kernel-over program-over kernels-abandoned"
    " kernels-creating>CREATING kernels-running>RUNNING destroy-requested>TERMINATING"
    " start-over-requested>STARTING_OVER kernel-ended>TERMINATING",
    "CREATING": "creation-deferred>PENDING creation-failed kernel-observed kernel-over program-over kernels-abandoned"
    " kernels-running>RUNNING destroy-requested>TERMINATING start-over-requested>STARTING_OVER"
    " kernel-ended>TERMINATING",
    "RUNNING": "restart-requested>RESTARTING degraded>RUNNING_DEGRADED kernel-observed kernel-over program-over"
    " kernels-abandoned destroy-requested>TERMINATING start-over-requested>STARTING_OVER kernel-ended>TERMINATING",
    "RUNNING_DEGRADED": "recovered>RUNNING kernel-observed kernel-over program-over kernels-abandoned"
    " destroy-requested>TERMINATING start-over-requested>STARTING_OVER kernel-ended>TERMINATING",
    "RESTARTING": "kernel-observed kernel-over program-over kernels-abandoned kernels-running>RUNNING"
    " destroy-requested>TERMINATING start-over-requested>STARTING_OVER kernel-ended>TERMINATING",
    "STARTING_OVER": "kernel-over kernels-abandoned kernels-waiting>PENDING program-over>TERMINATING"
    " destroy-requested>TERMINATING",
    "TERMINATING": "kernel-observed kernel-over program-over kernels-abandoned destroy-requested"
    " kernels-terminated>TERMINATED kernels-failed>ERROR kernels-cancelled>CANCELLED",
    "TERMINATED": "",
    "ERROR": "",
    "CANCELLED": "",
}


@pytest.mark.parametrize("phase", SessionPhase)
def test_every_row_of_the_table(phase: SessionPhase) -> None:
    rows = [f"{t}>{to}" if to is not None else str(t) for t, (to, _) in TRANSITIONS[phase].items()]
    assert sorted(rows) == sorted(ROWS[phase].split())


HANDLERS = {
    "scheduled": "_place",
    "dispatched": "_dispatch",
    "creation-deferred": "_return_all",
    "creation-failed": "_fail",
    "restart-requested": "_restart",
    "destroy-requested": "_destroy",
    "start-over-requested": "_start_over",
    "kernel-observed": "_observe",
    "kernel-over": "_observe",
    "program-over": "_observe",
    "kernels-abandoned": "_abandon",
    "kernel-ended": "_end_others",
    "PENDING destroy-requested": "_cancel",
    "TERMINATING destroy-requested": "_destroy_again",
    "STARTING_OVER destroy-requested": "_end_waiting",
    "STARTING_OVER kernel-over": "_wait_again",
    "STARTING_OVER kernels-abandoned": "_wait_again",
    "STARTING_OVER program-over": "_end_after_all",
}


def test_every_row_has_its_handler() -> None:
    for phase, rows in TRANSITIONS.items():
        for trigger, (_, handler) in rows.items():
            expected = HANDLERS.get(f"{phase} {trigger}", HANDLERS.get(trigger))
            assert (handler.__name__ if handler is not None else None) == expected, (phase, trigger)


def test_only_requests_are_refused() -> None:
    assert {SessionTrigger.SCHEDULED, SessionTrigger.RESTART_REQUESTED} == REQUESTS
