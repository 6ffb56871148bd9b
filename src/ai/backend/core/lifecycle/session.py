"""The machine of one session, which drives the machines of its kernels.

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
7. A session that ends with the reason RESCHEDULED starts over: each kernel of which nothing is left waits again, and
   with the last of them the session is PENDING. If the user ends it meanwhile, or its program is over by itself before
   it was stopped, it ends as any other.
8. A batch session's result is that of its main kernel's program: SUCCESS for exit code 0, FAILURE for any other end,
   UNDEFINED if the user ended it.

``step`` is total over (status, trigger): TRANSITIONS names the next status, or that the pair is ignored or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from ai.backend.common.errors import Conflict
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.common.states import (
    FINAL_SESSION_STATUSES,
    STARTING_SESSION_STATUSES,
    KernelEventReason,
    KernelStatus,
    SessionResult,
    SessionStatus,
    SessionType,
)
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
)
from ai.backend.core.lifecycle.kernel import HOLDING, PROGRESS, UP, KernelState, KernelStep, KernelTrigger
from ai.backend.core.lifecycle.outcomes import Outcome

S = SessionStatus


class SessionTrigger(StrEnum):
    """What may happen to a session. The second group is what its kernels add up to, see :func:`add_up`."""

    SCHEDULED = "scheduled"
    DISPATCHED = "dispatched"
    RESTART_REQUESTED = "restart-requested"
    DESTROY_REQUESTED = "destroy-requested"
    DEGRADED = "degraded"
    RECOVERED = "recovered"

    KERNEL_RETURNED = "kernel-returned"
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

_FORWARD = {
    T.KERNELS_PREPARING: S.PREPARING,
    T.KERNELS_PULLING: S.PULLING,
    T.KERNELS_PREPARED: S.PREPARED,
    T.KERNELS_CREATING: S.CREATING,
}
_ENDED = {T.KERNELS_TERMINATED: S.TERMINATED, T.KERNELS_FAILED: S.ERROR, T.KERNELS_CANCELLED: S.CANCELLED}
_ENDING = {T.DESTROY_REQUESTED: S.TERMINATING, T.KERNEL_ENDED: S.TERMINATING}


def _moves(status: SessionStatus) -> dict[SessionTrigger, SessionStatus]:
    """The rows of one status: every trigger that moves it, and where to."""
    if status is S.PENDING:
        return {T.SCHEDULED: S.SCHEDULED, T.DESTROY_REQUESTED: S.CANCELLED}
    if status in STARTING_SESSION_STATUSES:
        later = STARTING_SESSION_STATUSES[STARTING_SESSION_STATUSES.index(status) + 1 :]
        forward = {t: s for t, s in _FORWARD.items() if s in later}
        dispatched = {T.DISPATCHED: S.PREPARING} if status is S.SCHEDULED else {}
        return {**forward, **dispatched, T.KERNELS_RUNNING: S.RUNNING, T.KERNEL_RETURNED: S.PENDING, **_ENDING}
    if status is S.RUNNING:
        return {T.RESTART_REQUESTED: S.RESTARTING, T.DEGRADED: S.RUNNING_DEGRADED, **_ENDING}
    if status is S.RUNNING_DEGRADED:
        return {T.RECOVERED: S.RUNNING, **_ENDING}
    if status is S.RESTARTING:
        return {T.KERNELS_RUNNING: S.RUNNING, **_ENDING}
    if status is S.TERMINATING:
        return {**_ENDED, T.KERNEL_RETURNED: S.PENDING}
    return {}


_REFUSABLE = frozenset({T.SCHEDULED, T.RESTART_REQUESTED})


def _table() -> dict[tuple[SessionStatus, SessionTrigger], SessionStatus | Outcome]:
    table: dict[tuple[SessionStatus, SessionTrigger], SessionStatus | Outcome] = {}
    for status in SessionStatus:
        moves = _moves(status)
        for trigger in SessionTrigger:
            otherwise = Outcome.REFUSED if trigger in _REFUSABLE else Outcome.IGNORED
            table[status, trigger] = moves.get(trigger, otherwise)
    return table


TRANSITIONS: Mapping[tuple[SessionStatus, SessionTrigger], SessionStatus | Outcome] = MappingProxyType(_table())


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """A session with all its kernels.

    Attributes:
        reason: why it is in this status; the first cause of an end is kept.
        max_attempts: how many times it may be placed before a failure for now counts as one for good.
    """

    session_id: SessionId
    kernels: tuple[KernelState, ...]
    session_type: SessionType = SessionType.INTERACTIVE
    status: SessionStatus = SessionStatus.PENDING
    result: SessionResult = SessionResult.UNDEFINED
    reason: KernelEventReason = KernelEventReason.UNKNOWN
    max_attempts: int = 5

    def kernel(self, kernel_id: KernelId) -> KernelState | None:
        return next((k for k in self.kernels if k.kernel_id == kernel_id), None)


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
_STARTS_OVER = KernelEventReason.RESCHEDULED
_WITHOUT_RESULT = frozenset({KernelEventReason.USER_REQUESTED, KernelEventReason.FORCE_TERMINATED, _STARTS_OVER})
_PROGRAM_OVER = frozenset(
    {KernelEventReason.TASK_FINISHED, KernelEventReason.TASK_FAILED, KernelEventReason.TASK_TIMEOUT}
)


def add_up(statuses: Iterable[KernelStatus]) -> SessionTrigger | None:
    """What the kernels' statuses mean for their session; None where they mean nothing new.

    An end outweighs progress, and progress is that of the slowest kernel.
    """
    present = set(statuses)
    if not present:
        return None
    if all(s.is_final for s in present):
        if KernelStatus.ERROR in present:
            return T.KERNELS_FAILED
        return T.KERNELS_CANCELLED if present == {KernelStatus.CANCELLED} else T.KERNELS_TERMINATED
    if any(s.is_final or s is KernelStatus.TERMINATING for s in present):
        return T.KERNEL_ENDED
    if KernelStatus.RESTARTING in present:
        return None
    if present <= UP:
        return T.KERNELS_RUNNING
    slowest = min((s for s in present if s in PROGRESS), key=PROGRESS.index)
    return {
        KernelStatus.PREPARING: T.KERNELS_PREPARING,
        KernelStatus.PULLING: T.KERNELS_PULLING,
        KernelStatus.BUILDING: T.KERNELS_PULLING,
        KernelStatus.PREPARED: T.KERNELS_PREPARED,
        KernelStatus.CREATING: T.KERNELS_CREATING,
    }.get(slowest)


class _Step:
    """One step in progress: the state as it becomes, and the effects so far."""

    def __init__(self, state: SessionState) -> None:
        self.state = state
        self.effects: list[Effect] = []

    def move(self, trigger: SessionTrigger, reason: KernelEventReason = KernelEventReason.UNKNOWN) -> bool:
        """Apply one row of the table; False if it is ignored. Raises Conflict if it is refused."""
        target = TRANSITIONS[self.state.status, trigger]
        if target is Outcome.IGNORED:
            return False
        if isinstance(target, Outcome):
            raise Conflict(
                f"A session that is {self.state.status} cannot be {trigger}.",
                data={"id": str(self.state.session_id), "status": self.state.status.value},
            )
        keep = self.state.status is S.TERMINATING or reason is KernelEventReason.UNKNOWN
        self.state = replace(self.state, status=target, reason=self.state.reason if keep else reason)
        name = _SESSION_EVENTS[target]
        self.effects.append(EmitEvent(name=name, session_id=self.state.session_id, reason=self.state.reason))
        return True

    def move_kernels(self, make: Callable[[KernelState], KernelStep | None]) -> tuple[KernelState, ...]:
        """Step every kernel for which ``make`` gives a trigger, and return those that moved, as they are now."""
        moved = []
        kernels = []
        for before in self.state.kernels:
            event = make(before)
            after, effects = kernel_machine.step(before, event) if event is not None else (before, ())
            kernels.append(after)
            self.effects.extend(effects)
            if after is not before:
                moved.append(after)
                self._emit_kernel(after)
        self.state = replace(self.state, kernels=tuple(kernels))
        return tuple(moved)

    def _emit_kernel(self, kernel: KernelState) -> None:
        name = _KERNEL_EVENTS.get(kernel.status)
        if name is not None:
            event = EmitEvent(
                name=name,
                session_id=self.state.session_id,
                kernel_id=kernel.kernel_id,
                reason=kernel.reason,
                exit_code=kernel.exit_code,
            )
            self.effects.append(event)

    def destroy(self, kernels: Iterable[KernelState], reason: KernelEventReason, *, forced: bool = False) -> None:
        targets = tuple(k.target for k in kernels if k.agent_id is not None)
        if targets:
            self.effects.append(
                DestroyKernels(session_id=self.state.session_id, targets=targets, reason=reason, forced=forced)
            )

    def return_all(self, reason: KernelEventReason) -> None:
        """Send the whole session back to the scheduler and end what the agents may have of it.

        By force: nobody has worked in it yet, and the next attempt must not find a slow end of this one in its way.
        """
        holding = [k for k in self.state.kernels if k.status in HOLDING]
        self.move_kernels(lambda _: KernelStep(trigger=KernelTrigger.RETURNED, reason=reason))
        self.destroy(holding, reason, forced=True)
        self.move(T.KERNEL_RETURNED, reason)

    @property
    def starts_over(self) -> bool:
        return self.state.status is S.TERMINATING and self.state.reason is _STARTS_OVER

    def wait_again(self, kernel_ids: Collection[KernelId]) -> None:
        """Nothing is left of these kernels of a session that starts over."""
        returned = KernelStep(trigger=KernelTrigger.RETURNED, reason=_STARTS_OVER)
        self.move_kernels(lambda k: returned if k.kernel_id in kernel_ids else None)
        if all(k.status is KernelStatus.PENDING for k in self.state.kernels):
            self.move(T.KERNEL_RETURNED, _STARTS_OVER)

    def end_for_good(self, reason: KernelEventReason) -> None:
        """A session that was to start over does not."""
        self.state = replace(self.state, reason=reason)
        over = KernelStep(trigger=KernelTrigger.DESTROY_REQUESTED, reason=reason)
        self.move_kernels(lambda k: over if k.status is KernelStatus.PENDING else None)

    def settle(self, reason: KernelEventReason) -> None:
        """Let the session follow its kernels."""
        trigger = add_up(k.status for k in self.state.kernels)
        if trigger is None:
            return
        if trigger in _ENDED or trigger is T.KERNEL_ENDED:
            self._end(reason)
        else:
            self.move(trigger, reason)

    def _end(self, reason: KernelEventReason) -> None:
        if self.move(T.KERNEL_ENDED, reason):
            failed = any(k.status is KernelStatus.ERROR for k in self.state.kernels)
            sibling = KernelEventReason.SIBLING_FAILED if failed else reason
            request = KernelStep(trigger=KernelTrigger.DESTROY_REQUESTED, reason=sibling)
            ended = self.move_kernels(lambda k: None if k.status is KernelStatus.TERMINATING else request)
            self.destroy((k for k in ended if k.status is KernelStatus.TERMINATING), sibling)
        self._decide_result()
        trigger = add_up(k.status for k in self.state.kernels)
        if trigger in _ENDED:
            self.move(trigger)

    def _decide_result(self) -> None:
        main = next((k for k in self.state.kernels if k.is_main), None)
        if (
            self.state.session_type is not SessionType.BATCH
            or self.state.result is not SessionResult.UNDEFINED
            or main is None
            or not main.status.is_final
            or main.status is KernelStatus.CANCELLED
            or main.reason in _WITHOUT_RESULT
        ):
            return
        is_success = main.status is KernelStatus.TERMINATED and main.exit_code == 0
        result = SessionResult.SUCCESS if is_success else SessionResult.FAILURE
        self.state = replace(self.state, result=result)
        self.effects.append(
            EmitEvent(
                name="session_success" if is_success else "session_failure",
                session_id=self.state.session_id,
                reason=main.reason,
                exit_code=main.exit_code,
                result=result,
            )
        )


def _scheduled(now: _Step, event: SessionScheduled) -> None:
    missing = [k.kernel_id for k in now.state.kernels if k.kernel_id not in event.agents]
    if missing:
        raise Conflict(f"The plan places no agent for kernels {', '.join(map(str, missing))}.")
    now.move(T.SCHEDULED)
    now.move_kernels(lambda k: KernelStep(trigger=KernelTrigger.SCHEDULED, agent_id=event.agents[k.kernel_id]))
    targets = tuple(k.target for k in now.state.kernels)
    now.effects.append(CreateKernels(session_id=now.state.session_id, targets=targets))


def _dispatched(now: _Step, _: SessionDispatched) -> None:
    if now.move(T.DISPATCHED):
        now.move_kernels(lambda _: KernelStep(trigger=KernelTrigger.DISPATCHED))


def _creation_failed(now: _Step, event: SessionCreationFailed) -> None:
    if now.state.status not in STARTING_SESSION_STATUSES:
        return
    if event.retryable and all(k.attempt < now.state.max_attempts for k in now.state.kernels):
        now.return_all(event.reason)
        return
    failed = KernelStep(trigger=KernelTrigger.OBSERVED_ERROR, reason=event.reason)
    now.move_kernels(lambda k: failed if k.kernel_id in event.kernel_ids else None)
    now.settle(event.reason)


def _restart_requested(now: _Step, event: SessionRestartRequested) -> None:
    now.move(T.RESTART_REQUESTED, event.reason)
    request = KernelStep(trigger=KernelTrigger.RESTART_REQUESTED, reason=event.reason)
    moved = now.move_kernels(lambda _: request)
    targets = tuple(k.target for k in moved)
    now.effects.append(RestartKernels(session_id=now.state.session_id, targets=targets))


def _destroy_requested(now: _Step, event: SessionDestroyRequested) -> None:
    was = now.state.status
    if event.reason is _STARTS_OVER and was is S.PENDING:
        return
    if event.reason is not _STARTS_OVER and now.starts_over:
        now.end_for_good(event.reason)
    moved = now.move(T.DESTROY_REQUESTED, event.reason)
    if moved:
        request = KernelStep(trigger=KernelTrigger.DESTROY_REQUESTED, reason=event.reason)
        now.move_kernels(lambda k: None if k.status is KernelStatus.TERMINATING else request)
    if moved or (event.forced and was is S.TERMINATING):
        ending = (k for k in now.state.kernels if k.status is KernelStatus.TERMINATING)
        now.destroy(ending, event.reason, forced=event.forced)
    now.settle(event.reason)


def _degraded(now: _Step, event: SessionDegraded) -> None:
    now.move(T.DEGRADED, event.reason)


def _recovered(now: _Step, _: SessionRecovered) -> None:
    now.move(T.RECOVERED)


def _observed(now: _Step, event: KernelObserved) -> None:
    kernel = now.state.kernel(event.kernel_id)
    if kernel is None or kernel.attempt != event.attempt:
        return
    status = event.status
    if now.starts_over and (status.is_final or status is KernelStatus.PENDING):
        if not (kernel.is_main and event.reason in _PROGRAM_OVER):
            now.wait_again({event.kernel_id})
            return
        now.end_for_good(event.reason)
    if status is KernelStatus.PENDING:
        if now.state.status in STARTING_SESSION_STATUSES:
            ids, may_wait = frozenset({event.kernel_id}), kernel.status in PROGRESS
            _creation_failed(now, SessionCreationFailed(kernel_ids=ids, reason=event.reason, retryable=may_wait))
            return
        # The agent has given it back, and the session cannot wait any more: it is being ended, or has run already.
        status = KernelStatus.TERMINATED if kernel.status is KernelStatus.TERMINATING else KernelStatus.ERROR
    seen = KernelStep(
        trigger=KernelTrigger.observed(status), reason=event.reason, attempt=event.attempt, exit_code=event.exit_code
    )
    if now.move_kernels(lambda k: seen if k.kernel_id == event.kernel_id else None):
        now.settle(event.reason)


def _abandoned(now: _Step, event: KernelsAbandoned) -> None:
    if now.starts_over:
        now.wait_again(event.kernel_ids)
        return
    lost = KernelStep(trigger=KernelTrigger.ABANDONED, reason=event.reason)
    if now.move_kernels(lambda k: lost if k.kernel_id in event.kernel_ids else None):
        now.settle(event.reason)


def step(state: SessionState, event: SessionEvent) -> tuple[SessionState, tuple[Effect, ...]]:
    """Move a session and its kernels by one event.

    Returns:
        The state as it is now (an equal one and no effects if the event is ignored) and what the shell must do.

    Raises:
        Conflict: the present status does not admit the request; nothing has changed.
    """
    now = _Step(state)
    if state.status not in FINAL_SESSION_STATUSES or isinstance(event, SessionScheduled | SessionRestartRequested):
        match event:
            case SessionScheduled():
                _scheduled(now, event)
            case SessionDispatched():
                _dispatched(now, event)
            case SessionCreationFailed():
                _creation_failed(now, event)
            case SessionRestartRequested():
                _restart_requested(now, event)
            case SessionDestroyRequested():
                _destroy_requested(now, event)
            case SessionDegraded():
                _degraded(now, event)
            case SessionRecovered():
                _recovered(now, event)
            case KernelObserved():
                _observed(now, event)
            case KernelsAbandoned():
                _abandoned(now, event)
    return now.state, tuple(now.effects)


def check(state: SessionState) -> list[str]:
    """Name every invariant that this state breaks; empty when it is sound."""
    broken = [text for k in state.kernels for text in kernel_machine.check(k)]
    statuses = {k.status for k in state.kernels}
    if not state.kernels:
        broken.append("a session without kernels")
    if state.status.is_final and not all(s.is_final for s in statuses):
        broken.append(f"{state.status} with live kernels: {sorted(statuses)}")
    if not state.status.is_final and all(s.is_final for s in statuses):
        broken.append(f"{state.status} although every kernel has ended")
    if state.status is S.PENDING and statuses != {KernelStatus.PENDING}:
        broken.append(f"PENDING with kernels {sorted(statuses)}")
    may_wait = state.status in (S.PENDING, S.CANCELLED) or _Step(state).starts_over
    if KernelStatus.PENDING in statuses and not may_wait:
        broken.append(f"{state.status} with a PENDING kernel")
    if state.status in (S.RUNNING, S.RUNNING_DEGRADED) and not statuses <= UP:
        broken.append(f"{state.status} with kernels {sorted(statuses)}")
    if state.result is not SessionResult.UNDEFINED and state.session_type is not SessionType.BATCH:
        broken.append(f"a {state.session_type} session has the result {state.result}")
    if sum(k.is_main for k in state.kernels) != 1:
        broken.append("a session needs exactly one main kernel")
    return broken
