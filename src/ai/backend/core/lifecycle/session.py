"""Defines the state machine of one session, which drives the state machines of its kernels.

Rules:

1. All or nothing. A session is scheduled, created, run and ended as a whole: it is as far as its slowest kernel, it is
   RUNNING when every kernel is up, and when one kernel ends or fails, the others are ended too.
2. Before it has run, a session whose creation failed for now goes back to PENDING with all its kernels; what the agents
   already had of it is destroyed as an older attempt. After ``max_attempts`` a failure for now is one for good.
3. A final status never changes: TERMINATED, ERROR if a kernel failed, CANCELLED if nothing had been placed.
4. PENDING + destroy is CANCELLED at once; everything else goes through TERMINATING until every kernel is final.
5. RESTARTING is in place: every kernel keeps its agent and slots, gets the next attempt, and must come up again.
6. RUNNING_DEGRADED means that an agent of a running session does not answer. Nothing is ended because of that alone;
   giving the agent up is a decision of its own (KernelsAbandoned).
7. A session that makes way for another one is STARTING_OVER: each kernel of which nothing is left waits again, and
   with the last of them the session is PENDING. If the user ends it meanwhile, or its program is over by itself before
   it was stopped, it is TERMINATING and ends as any other. Clients see TERMINATING in both states.
8. A batch session's result is that of its main kernel's program: SUCCESS for exit code 0, FAILURE for any other end,
   UNDEFINED if the user ended it.
9. To schedule a session and to restart it are requests: where they have no row, they are refused. Any other trigger
   without a row is late or repeated and changes nothing.

:func:`trigger_of` names the trigger of an event, :data:`TRANSITIONS` the next phase and the handler of each trigger. A
handler moves the kernels and asks for effects; then the session follows what its kernels add up to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from ai.backend.common.errors import Conflict
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.common.states import KernelEventReason, KernelStatus, SessionResult, SessionStatus, SessionType
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle import kernel as kernel_machine
from ai.backend.core.lifecycle.effects import CreateKernels, DestroyKernels, Effect, EmitEvent, RestartKernels
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
    SessionStimulus,
)
from ai.backend.core.lifecycle.kernel import HOLDING, PROGRESS, UP, KernelState, KernelStep, KernelTrigger
from ai.backend.core.lifecycle.transition import Transition, Transitions, append_transitions, find_row

S = SessionStatus


class SessionPhase(StrEnum):
    """Lists the states of a session: the public statuses, and STARTING_OVER, which clients see as TERMINATING."""

    PENDING = "PENDING"
    SCHEDULED = "SCHEDULED"
    PREPARING = "PREPARING"
    PULLING = "PULLING"
    PREPARED = "PREPARED"
    CREATING = "CREATING"
    RUNNING = "RUNNING"
    RUNNING_DEGRADED = "RUNNING_DEGRADED"
    RESTARTING = "RESTARTING"
    STARTING_OVER = "STARTING_OVER"
    TERMINATING = "TERMINATING"
    TERMINATED = "TERMINATED"
    ERROR = "ERROR"
    CANCELLED = "CANCELLED"

    @property
    def status(self) -> SessionStatus:
        """Returns the status that clients and the database see."""
        return _STATUS_OF[self]


P = SessionPhase
_STATUS_OF = {p: S.TERMINATING if p is P.STARTING_OVER else SessionStatus(p.value) for p in P}


class SessionTrigger(StrEnum):
    """Lists the triggers of a session. The triggers of the second group follow from the statuses of the kernels.

    See :func:`trigger_from_statuses`.
    """

    SCHEDULED = "scheduled"
    DISPATCHED = "dispatched"
    CREATION_DEFERRED = "creation-deferred"
    CREATION_FAILED = "creation-failed"
    RESTART_REQUESTED = "restart-requested"
    DESTROY_REQUESTED = "destroy-requested"
    START_OVER_REQUESTED = "start-over-requested"
    DEGRADED = "degraded"
    RECOVERED = "recovered"
    KERNEL_OBSERVED = "kernel-observed"
    KERNEL_OVER = "kernel-over"
    PROGRAM_OVER = "program-over"
    KERNELS_ABANDONED = "kernels-abandoned"

    KERNELS_WAITING = "kernels-waiting"
    KERNELS_PREPARING = "kernels-preparing"
    KERNELS_PULLING = "kernels-pulling"
    KERNELS_PREPARED = "kernels-prepared"
    KERNELS_CREATING = "kernels-creating"
    KERNELS_RUNNING = "kernels-running"
    KERNEL_ENDED = "kernel-ended"
    KERNELS_TERMINATED = "kernels-terminated"
    KERNELS_FAILED = "kernels-failed"
    KERNELS_CANCELLED = "kernels-cancelled"


T = SessionTrigger
_ENDED = frozenset({T.KERNEL_ENDED, T.KERNELS_TERMINATED, T.KERNELS_FAILED, T.KERNELS_CANCELLED})


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the state of a session with all its kernels.

    The first cause of an end stays its ``reason``; once a kernel was placed ``max_attempts`` times, a failure for now
    counts as one for good.
    """

    session_id: SessionId
    kernels: tuple[KernelState, ...]
    session_type: SessionType = SessionType.INTERACTIVE
    phase: SessionPhase = SessionPhase.PENDING
    result: SessionResult = SessionResult.UNDEFINED
    reason: KernelEventReason = KernelEventReason.UNKNOWN
    max_attempts: int = 5
    recent_transitions: Transitions = ()

    @property
    def status(self) -> SessionStatus:
        return self.phase.status

    def kernel(self, kernel_id: KernelId) -> KernelState | None:
        return next((kernel for kernel in self.kernels if kernel.kernel_id == kernel_id), None)


_SESSION_EVENTS = {
    S.PENDING: "session_enqueued",
    S.SCHEDULED: "session_scheduled",
    S.PREPARING: "session_preparing",
    S.PULLING: "session_pulling",
    S.PREPARED: "session_prepared",
    S.CREATING: "session_creating",
    S.RUNNING: "session_started",
    S.RESTARTING: "session_restarting",
    S.RUNNING_DEGRADED: "session_degraded",
    S.TERMINATING: "session_terminating",
    S.TERMINATED: "session_terminated",
    S.ERROR: "session_terminated",
    S.CANCELLED: "session_cancelled",
}
_KERNEL_EVENTS = {
    KernelStatus.PREPARING: "kernel_preparing",
    KernelStatus.PULLING: "kernel_pulling",
    KernelStatus.CREATING: "kernel_creating",
    KernelStatus.RUNNING: "kernel_started",
    KernelStatus.TERMINATING: "kernel_terminating",
    KernelStatus.TERMINATED: "kernel_terminated",
    KernelStatus.ERROR: "kernel_terminated",
    KernelStatus.CANCELLED: "kernel_cancelled",
}
_WITHOUT_RESULT = frozenset(
    {KernelEventReason.USER_REQUESTED, KernelEventReason.FORCE_TERMINATED, KernelEventReason.RESCHEDULED}
)
_PROGRAM_OVER = frozenset(
    {KernelEventReason.TASK_FINISHED, KernelEventReason.TASK_FAILED, KernelEventReason.TASK_TIMEOUT}
)


def trigger_from_statuses(statuses: Iterable[KernelStatus]) -> SessionTrigger | None:
    """Returns the session trigger that follows from the statuses of all kernels. Returns None if nothing follows."""
    present_statuses = set(statuses)
    if not present_statuses:
        return None
    if all(status.is_final for status in present_statuses):
        if KernelStatus.ERROR in present_statuses:
            return T.KERNELS_FAILED
        return T.KERNELS_CANCELLED if present_statuses == {KernelStatus.CANCELLED} else T.KERNELS_TERMINATED
    if any(status.is_final or status is KernelStatus.TERMINATING for status in present_statuses):
        return T.KERNEL_ENDED
    if KernelStatus.RESTARTING in present_statuses:
        return None
    if present_statuses <= UP:
        return T.KERNELS_RUNNING
    slowest_status = min((status for status in present_statuses if status in PROGRESS), key=PROGRESS.index)
    return {
        KernelStatus.PREPARING: T.KERNELS_PREPARING,
        KernelStatus.PULLING: T.KERNELS_PULLING,
        KernelStatus.BUILDING: T.KERNELS_PULLING,
        KernelStatus.PREPARED: T.KERNELS_PREPARED,
        KernelStatus.CREATING: T.KERNELS_CREATING,
    }.get(slowest_status)


_TRIGGER_OF: Mapping[type[SessionStimulus], SessionTrigger] = {
    SessionScheduled: T.SCHEDULED,
    SessionDispatched: T.DISPATCHED,
    SessionRestartRequested: T.RESTART_REQUESTED,
    SessionDestroyRequested: T.DESTROY_REQUESTED,
    SessionStartOverRequested: T.START_OVER_REQUESTED,
    SessionDegraded: T.DEGRADED,
    SessionRecovered: T.RECOVERED,
    KernelsAbandoned: T.KERNELS_ABANDONED,
}


def trigger_of(state: SessionState, event: SessionEvent) -> SessionTrigger | None:
    """Returns the trigger of an event. Returns None for an observation of another attempt or of an unknown kernel."""
    may_retry = all(other_kernel.attempt < state.max_attempts for other_kernel in state.kernels)
    if isinstance(event, SessionCreationFailed):
        return T.CREATION_DEFERRED if event.retryable and may_retry else T.CREATION_FAILED
    if not isinstance(event, KernelObserved):
        return _TRIGGER_OF[type(event)]
    kernel = state.kernel(event.kernel_id)
    if kernel is None or kernel.attempt != event.attempt:
        return None
    if event.status is KernelStatus.PENDING:
        return T.CREATION_DEFERRED if kernel.status in PROGRESS and may_retry else T.KERNEL_OVER
    if not event.status.is_final:
        return T.KERNEL_OBSERVED
    return T.PROGRAM_OVER if kernel.is_main and event.reason in _PROGRAM_OVER else T.KERNEL_OVER


class _Step:
    """Collects the new state, the path and the effects of a step."""

    def __init__(self, state: SessionState, event: SessionStimulus) -> None:
        self.state = state
        self.event = event
        self.path: list[Transition] = []
        self.effects: list[Effect] = []

    def apply(self, trigger: SessionTrigger) -> None:
        """Applies one row of the table. Raises InvalidTransition if the trigger is a request and has no row."""
        state = self.state
        row = find_row(
            TRANSITIONS,
            REQUESTS,
            state.phase,
            trigger,
            message=f"A session that is {state.status} cannot be {trigger}.",
            subject=f"session {state.session_id}",
            stimulus_id=self.event.stimulus_id,
            recent_transitions=state.recent_transitions,
            data={"id": str(state.session_id), "status": state.status.value},
        )
        if row is None:
            return
        next_phase, handler = row
        if next_phase is not None:
            self._enter_phase(next_phase, trigger)
        if handler is not None:
            handler(self, self.event)

    def _enter_phase(self, phase: SessionPhase, trigger: SessionTrigger) -> None:
        old_state, reason = self.state, self.event.reason
        if old_state.phase is P.TERMINATING or trigger is T.KERNELS_WAITING or reason is KernelEventReason.UNKNOWN:
            reason = old_state.reason
        transition = Transition(old_state.phase, trigger, phase, self.event.stimulus_id)
        self.path.append(transition)
        recent_transitions = append_transitions(old_state.recent_transitions, (transition,))
        self.state = replace(old_state, phase=phase, reason=reason, recent_transitions=recent_transitions)
        if phase.status is not old_state.status:
            self._emit_event(_SESSION_EVENTS[phase.status], reason=self.state.reason)

    def _emit_event(self, name: str, **details: Any) -> None:
        self.effects.append(EmitEvent(name=name, session_id=self.state.session_id, **details))

    def move_kernels(
        self, trigger: KernelTrigger, is_selected: Callable[[KernelState], bool] = lambda _: True, **details: Any
    ) -> bool:
        """Applies a trigger, with fields of the step, to every selected kernel. Returns True if one has moved."""
        step_fields = {"reason": self.event.reason, **details}
        step = KernelStep(trigger=trigger, stimulus_id=self.event.stimulus_id, **step_fields)
        return self.step_kernels(lambda kernel: step if is_selected(kernel) else None)

    def step_kernels(self, make_step: Callable[[KernelState], KernelStep | None]) -> bool:
        """Steps every kernel for which ``make_step`` returns a trigger. Returns True if one of them has moved."""
        has_moved = False
        kernels = list(self.state.kernels)
        for index, old_kernel in enumerate(kernels):
            if (step := make_step(old_kernel)) is None:
                continue
            kernels[index], transitions, effects = kernel_machine.step(
                old_kernel, step, recent_transitions=self.state.recent_transitions
            )
            new_kernel = kernels[index]
            self.effects.extend(effects)
            has_moved = has_moved or bool(transitions)
            if transitions and (event_name := _KERNEL_EVENTS.get(new_kernel.status)) is not None:
                self._emit_event(
                    event_name, kernel_id=new_kernel.kernel_id, reason=new_kernel.reason, exit_code=new_kernel.exit_code
                )
        if has_moved:
            self.state = replace(self.state, kernels=tuple(kernels))
        return has_moved

    def terminating_kernels(self) -> list[KernelState]:
        return [kernel for kernel in self.state.kernels if kernel.status is KernelStatus.TERMINATING]

    def destroy_kernels(
        self, kernels: Iterable[KernelState], reason: KernelEventReason, *, forced: bool = False
    ) -> None:
        """Requests the end of those kernels that an agent holds."""
        targets = tuple(kernel.target for kernel in kernels if kernel.agent_id is not None)
        if targets:
            self.effects.append(
                DestroyKernels(session_id=self.state.session_id, targets=targets, reason=reason, forced=forced)
            )

    def follow_kernels(self) -> None:
        """Moves the session to the state that follows from its kernels. Every end passes TERMINATING."""
        trigger = trigger_from_statuses(kernel.status for kernel in self.state.kernels)
        if trigger in _ENDED:
            self.apply(T.KERNEL_ENDED)
            self._decide_result()
            trigger = trigger_from_statuses(kernel.status for kernel in self.state.kernels)
        if trigger is not None:
            self.apply(trigger)

    def _decide_result(self) -> None:
        main_kernel = next((kernel for kernel in self.state.kernels if kernel.is_main), None)
        if (
            self.state.session_type is not SessionType.BATCH
            or self.state.result is not SessionResult.UNDEFINED
            or main_kernel is None
            or not main_kernel.status.is_final
            or main_kernel.status is KernelStatus.CANCELLED
            or main_kernel.reason in _WITHOUT_RESULT
        ):
            return
        is_success = main_kernel.status is KernelStatus.TERMINATED and main_kernel.exit_code == 0
        result = SessionResult.SUCCESS if is_success else SessionResult.FAILURE
        self.state = replace(self.state, result=result)
        event_name = "session_success" if is_success else "session_failure"
        self._emit_event(event_name, reason=main_kernel.reason, exit_code=main_kernel.exit_code, result=result)


# ---- the handlers; the trigger of a row determines the class of its event


def _place(session_step: _Step, event: SessionScheduled) -> None:
    unplaced_ids = [kernel.kernel_id for kernel in session_step.state.kernels if kernel.kernel_id not in event.agents]
    if unplaced_ids:
        raise Conflict(f"The plan places no agent for kernels {', '.join(map(str, unplaced_ids))}.")
    schedule_step = KernelStep(trigger=KernelTrigger.SCHEDULED, reason=event.reason, stimulus_id=event.stimulus_id)
    session_step.step_kernels(lambda kernel: replace(schedule_step, agent_id=event.agents[kernel.kernel_id]))
    session_step.effects.append(CreateKernels(session_id=session_step.state.session_id))


def _dispatch(session_step: _Step, _: SessionDispatched) -> None:
    session_step.move_kernels(KernelTrigger.DISPATCHED)


def _return_all(session_step: _Step, event: SessionStimulus) -> None:
    """Returns all kernels of a session to the queue, and ends them on their agents by force.

    So the next attempt of the session need not wait.
    """
    kernels_on_agents = [kernel for kernel in session_step.state.kernels if kernel.status in HOLDING]
    session_step.move_kernels(KernelTrigger.RETURNED)
    session_step.destroy_kernels(kernels_on_agents, event.reason, forced=True)


def _fail(session_step: _Step, event: SessionCreationFailed) -> None:
    session_step.move_kernels(KernelTrigger.OBSERVED_ERROR, lambda kernel: kernel.kernel_id in event.kernel_ids)
    session_step.follow_kernels()


def _restart(session_step: _Step, _: SessionRestartRequested) -> None:
    session_step.move_kernels(KernelTrigger.RESTART_REQUESTED)
    session_step.effects.append(RestartKernels(session_id=session_step.state.session_id))


def _cancel(session_step: _Step, _: SessionDestroyRequested) -> None:
    session_step.move_kernels(KernelTrigger.DESTROY_REQUESTED)


def _destroy(session_step: _Step, event: SessionDestroyRequested) -> None:
    session_step.move_kernels(KernelTrigger.DESTROY_REQUESTED)
    session_step.destroy_kernels(session_step.terminating_kernels(), event.reason, forced=event.forced)


def _start_over(session_step: _Step, event: SessionStartOverRequested) -> None:
    session_step.move_kernels(KernelTrigger.DESTROY_REQUESTED)
    session_step.destroy_kernels(session_step.terminating_kernels(), event.reason)


def _destroy_again(session_step: _Step, event: SessionDestroyRequested) -> None:
    """Requests the end of the terminating kernels once more if the new request is forced.

    Otherwise a graceful end is already in progress.
    """
    if event.forced:
        session_step.destroy_kernels(session_step.terminating_kernels(), event.reason, forced=True)


def _end_waiting(session_step: _Step, event: SessionDestroyRequested) -> None:
    """Ends a session that was to start over: terminates its kernels that already wait for the next attempt."""
    session_step.move_kernels(KernelTrigger.DESTROY_REQUESTED, lambda kernel: kernel.status is KernelStatus.PENDING)
    _destroy_again(session_step, event)


def _observe(session_step: _Step, event: KernelObserved) -> None:
    status = event.status
    if status is KernelStatus.PENDING:
        # The agent has given it back, and the session cannot wait any more: it is being ended, or has run already.
        kernel = session_step.state.kernel(event.kernel_id)
        is_ending = kernel is not None and kernel.status is KernelStatus.TERMINATING
        status = KernelStatus.TERMINATED if is_ending else KernelStatus.ERROR
    if session_step.move_kernels(
        KernelTrigger.for_observed(status),
        lambda kernel_state: kernel_state.kernel_id == event.kernel_id,
        attempt=event.attempt,
        exit_code=event.exit_code,
    ):
        session_step.follow_kernels()


def _end_after_all(session_step: _Step, event: KernelObserved) -> None:
    """Ends a session that was to start over, because its program has ended by itself."""
    session_step.move_kernels(KernelTrigger.DESTROY_REQUESTED, lambda kernel: kernel.status is KernelStatus.PENDING)
    _observe(session_step, event)


def _abandon(session_step: _Step, event: KernelsAbandoned) -> None:
    if session_step.move_kernels(KernelTrigger.ABANDONED, lambda kernel: kernel.kernel_id in event.kernel_ids):
        session_step.follow_kernels()


def _wait_again(session_step: _Step, event: KernelObserved | KernelsAbandoned) -> None:
    """Returns the ended kernels of a session that starts over to the queue."""
    ended_kernels: Collection[KernelId] = event.kernel_ids if isinstance(event, KernelsAbandoned) else {event.kernel_id}
    session_step.move_kernels(
        KernelTrigger.RETURNED, lambda kernel: kernel.kernel_id in ended_kernels, reason=KernelEventReason.RESCHEDULED
    )
    if all(kernel.status is KernelStatus.PENDING for kernel in session_step.state.kernels):
        session_step.apply(T.KERNELS_WAITING)


def _end_others(session_step: _Step, event: SessionStimulus) -> None:
    has_failed = any(kernel.status is KernelStatus.ERROR for kernel in session_step.state.kernels)
    reason = KernelEventReason.SIBLING_FAILED if has_failed else event.reason
    were_terminating = {kernel.kernel_id for kernel in session_step.terminating_kernels()}
    session_step.move_kernels(KernelTrigger.DESTROY_REQUESTED, reason=reason)
    session_step.destroy_kernels(
        (kernel for kernel in session_step.terminating_kernels() if kernel.kernel_id not in were_terminating), reason
    )


Row = tuple[SessionPhase | None, Callable[[_Step, Any], None] | None]
"""(next phase, None for the present one; handler)."""

#: The rows of every phase in which kernels may exist and the session is not starting over.
_OBSERVES: Mapping[SessionTrigger, Row] = {
    T.KERNEL_OBSERVED: (None, _observe),
    T.KERNEL_OVER: (None, _observe),
    T.PROGRAM_OVER: (None, _observe),
    T.KERNELS_ABANDONED: (None, _abandon),
}
#: The rows of every phase from SCHEDULED to RESTARTING.
_ENDS: Mapping[SessionTrigger, Row] = {
    T.DESTROY_REQUESTED: (P.TERMINATING, _destroy),
    T.START_OVER_REQUESTED: (P.STARTING_OVER, _start_over),
    T.KERNEL_ENDED: (P.TERMINATING, _end_others),
}
#: The rows of every phase before the session has run.
_STARTS: Mapping[SessionTrigger, Row] = {
    T.CREATION_DEFERRED: (P.PENDING, _return_all),
    T.CREATION_FAILED: (None, _fail),
    **_OBSERVES,
    **_ENDS,
}
TRANSITIONS: Mapping[SessionPhase, Mapping[SessionTrigger, Row]] = {
    P.PENDING: {
        T.SCHEDULED: (P.SCHEDULED, _place),
        T.DESTROY_REQUESTED: (P.CANCELLED, _cancel),
    },
    P.SCHEDULED: {
        **_STARTS,
        T.DISPATCHED: (P.PREPARING, _dispatch),
        T.KERNELS_PREPARING: (P.PREPARING, None),
        T.KERNELS_PULLING: (P.PULLING, None),
        T.KERNELS_PREPARED: (P.PREPARED, None),
        T.KERNELS_CREATING: (P.CREATING, None),
        T.KERNELS_RUNNING: (P.RUNNING, None),
    },
    P.PREPARING: {
        **_STARTS,
        T.KERNELS_PULLING: (P.PULLING, None),
        T.KERNELS_PREPARED: (P.PREPARED, None),
        T.KERNELS_CREATING: (P.CREATING, None),
        T.KERNELS_RUNNING: (P.RUNNING, None),
    },
    P.PULLING: {
        **_STARTS,
        T.KERNELS_PREPARED: (P.PREPARED, None),
        T.KERNELS_CREATING: (P.CREATING, None),
        T.KERNELS_RUNNING: (P.RUNNING, None),
    },
    P.PREPARED: {
        **_STARTS,
        T.KERNELS_CREATING: (P.CREATING, None),
        T.KERNELS_RUNNING: (P.RUNNING, None),
    },
    P.CREATING: {
        **_STARTS,
        T.KERNELS_RUNNING: (P.RUNNING, None),
    },
    P.RUNNING: {
        T.RESTART_REQUESTED: (P.RESTARTING, _restart),
        T.DEGRADED: (P.RUNNING_DEGRADED, None),
        **_OBSERVES,
        **_ENDS,
    },
    P.RUNNING_DEGRADED: {
        T.RECOVERED: (P.RUNNING, None),
        **_OBSERVES,
        **_ENDS,
    },
    P.RESTARTING: {
        T.KERNELS_RUNNING: (P.RUNNING, None),
        **_OBSERVES,
        **_ENDS,
    },
    P.STARTING_OVER: {
        T.KERNEL_OVER: (None, _wait_again),
        T.KERNELS_ABANDONED: (None, _wait_again),
        T.KERNELS_WAITING: (P.PENDING, None),
        T.PROGRAM_OVER: (P.TERMINATING, _end_after_all),
        T.DESTROY_REQUESTED: (P.TERMINATING, _end_waiting),
    },
    P.TERMINATING: {
        **_OBSERVES,
        T.DESTROY_REQUESTED: (None, _destroy_again),
        T.KERNELS_TERMINATED: (P.TERMINATED, None),
        T.KERNELS_FAILED: (P.ERROR, None),
        T.KERNELS_CANCELLED: (P.CANCELLED, None),
    },
    P.TERMINATED: {},
    P.ERROR: {},
    P.CANCELLED: {},
}
#: A request without a row is refused; any other trigger without a row is late or repeated.
REQUESTS = frozenset({T.SCHEDULED, T.RESTART_REQUESTED})


def step(state: SessionState, event: SessionEvent) -> tuple[SessionState, Transitions, tuple[Effect, ...]]:
    """Applies one event to a session and its kernels.

    Returns:
        The state as it is now (an equal one, an empty path and no effects if the event is ignored), the transitions of
        the session that led there, and what the caller must do.

    Raises:
        InvalidTransition: the present state does not admit the request.
        Conflict: the plan forgets a kernel.
    """
    trigger = trigger_of(state, event)
    if trigger is None:
        return state, (), ()
    session_step = _Step(state, event)
    session_step.apply(trigger)
    return session_step.state, tuple(session_step.path), tuple(session_step.effects)


def check(state: SessionState) -> list[str]:
    """Returns every invariant that this state violates; empty if it is valid."""
    violations = [violation for kernel in state.kernels for violation in kernel_machine.check(kernel)]
    statuses = {kernel.status for kernel in state.kernels}
    if not state.kernels:
        violations.append("a session without kernels")
    if state.status.is_final and not all(kernel_status.is_final for kernel_status in statuses):
        violations.append(f"{state.status} with live kernels: {sorted(statuses)}")
    if not state.status.is_final and all(kernel_status.is_final for kernel_status in statuses):
        violations.append(f"{state.status} although every kernel has ended")
    if state.status is S.PENDING and statuses != {KernelStatus.PENDING}:
        violations.append(f"PENDING with kernels {sorted(statuses)}")
    may_be_pending = state.phase in (P.PENDING, P.CANCELLED, P.STARTING_OVER)
    if KernelStatus.PENDING in statuses and not may_be_pending:
        violations.append(f"{state.phase} with a PENDING kernel")
    if state.status in (S.RUNNING, S.RUNNING_DEGRADED) and not statuses <= UP:
        violations.append(f"{state.status} with kernels {sorted(statuses)}")
    if state.result is not SessionResult.UNDEFINED and state.session_type is not SessionType.BATCH:
        violations.append(f"a {state.session_type} session has the result {state.result}")
    if sum(kernel.is_main for kernel in state.kernels) != 1:
        violations.append("a session needs exactly one main kernel")
    return violations
