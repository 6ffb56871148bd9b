"""From the manager's aggregate to the machines of ``core.lifecycle`` and back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from ai.backend.common.ids import KernelId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import KernelEventReason, KernelStatus, SessionStatus
from ai.backend.core.lifecycle.effects import Effect, EmitEvent
from ai.backend.core.lifecycle.events import SessionEvent
from ai.backend.core.lifecycle.kernel import HOLDING, KernelState
from ai.backend.core.lifecycle.session import SessionState, step
from ai.backend.manager.model.changes import Change
from ai.backend.manager.model.journal import EventDraft
from ai.backend.manager.model.session import Kernel, Session

MAX_ATTEMPTS = 5
RETRY_BACKOFF = timedelta(seconds=0.5)
"""How long a session whose creation failed for now is left alone at least; doubles with each attempt."""
_PASSED = {
    "session_scheduled": SessionStatus.SCHEDULED,
    "session_preparing": SessionStatus.PREPARING,
    "session_pulling": SessionStatus.PULLING,
    "session_prepared": SessionStatus.PREPARED,
    "session_creating": SessionStatus.CREATING,
    "session_started": SessionStatus.RUNNING,
    "session_restarting": SessionStatus.RESTARTING,
    "session_terminating": SessionStatus.TERMINATING,
}
"""Events that tell through which statuses one step led. TERMINATED, ERROR and the like are read from the outcome."""


def kernel_state(kernel: Kernel, *, is_main: bool) -> KernelState:
    return KernelState(
        kernel_id=kernel.id,
        status=kernel.status,
        attempt=kernel.attempt,
        agent_id=kernel.agent,
        is_main=is_main,
        reason=kernel.reason,
        exit_code=kernel.exit_code,
    )


def session_state(session: Session) -> SessionState:
    return SessionState(
        session_id=session.id,
        kernels=tuple(kernel_state(k, is_main=i == 0) for i, k in enumerate(session.kernels)),
        session_type=session.type,
        status=session.status,
        result=session.result,
        reason=session.reason,
        max_attempts=MAX_ATTEMPTS,
    )


def _merge_kernel(kernel: Kernel, state: KernelState, now: datetime, slots: ResourceSlot | None) -> Kernel:
    if (kernel.status, kernel.attempt, kernel.agent, kernel.reason, kernel.exit_code) == (
        state.status,
        state.attempt,
        state.agent_id,
        state.reason,
        state.exit_code,
    ):
        return kernel
    after = replace(
        kernel,
        status=state.status,
        reason=state.reason,
        attempt=state.attempt,
        agent=state.agent_id,
        exit_code=state.exit_code,
        status_info=state.reason.value if state.reason is not KernelEventReason.UNKNOWN else kernel.status_info,
        status_changed=now if state.status is not kernel.status else kernel.status_changed,
    )
    if state.status in HOLDING and kernel.status not in HOLDING:
        after = replace(after, occupied_slots=slots if slots is not None else kernel.requested_slots)
    elif state.status not in HOLDING and kernel.status in HOLDING:
        after = replace(after, occupied_slots=ResourceSlot())
    if state.status is KernelStatus.RUNNING and kernel.started_at is None:
        after = replace(after, started_at=now)
    if state.status.is_final and not kernel.status.is_final:
        after = replace(after, terminated_at=now)
    return after


def _draft(session: Session, effect: EmitEvent) -> EventDraft:
    payload: dict[str, Any] = {
        "sessionId": str(session.id),
        "sessionName": session.name,
        "ownerAccessKey": session.access_key,
        "reason": effect.reason.value,
    }
    if effect.kernel_id is not None:
        kernel = next(k for k in session.kernels if k.id == effect.kernel_id)
        payload |= {
            "kernelId": str(kernel.id),
            "clusterRole": kernel.cluster_role,
            "clusterIdx": kernel.cluster_idx,
            "agentId": kernel.agent,
        }
    if effect.exit_code is not None:
        payload["exitCode"] = effect.exit_code
    if effect.result is not None:
        payload["result"] = effect.result.value
    return EventDraft(name=effect.name, session_id=session.id, kernel_id=effect.kernel_id, payload=payload)


def _merge_session(session: Session, state: SessionState, kernels: tuple[Kernel, ...], now: datetime) -> Session:
    moved = state.status is not session.status
    after = replace(
        session,
        kernels=kernels,
        status=state.status,
        result=state.result,
        reason=state.reason,
        status_info=state.reason.value if state.reason is not KernelEventReason.UNKNOWN else session.status_info,
        status_changed=now if moved else session.status_changed,
    )
    if state.status is SessionStatus.SCHEDULED and moved:
        after = replace(after, scheduled_at=now, status_info=None, status_data={})
    if state.status is SessionStatus.RUNNING and session.started_at is None:
        after = replace(after, started_at=now, status_info=None)
    if state.status is SessionStatus.PENDING and moved:
        tried = max(k.attempt for k in kernels)
        after = replace(after, not_before=now + RETRY_BACKOFF * 2 ** (tried - 1))
    if state.status.is_final and moved:
        after = replace(after, terminated_at=now)
    return after


def advance(
    session: Session,
    *events: SessionEvent,
    now: datetime,
    kernel_slots: Mapping[KernelId, ResourceSlot] | None = None,
) -> tuple[Change | None, tuple[Effect, ...]]:
    """Move a session by ``events``.

    Args:
        session: as it was read.
        events: applied in order.
        now: when.
        kernel_slots: what a kernel takes when it becomes holding, if not what it requested.

    Returns:
        The change to save, None if nothing changed, and what is to be done afterwards.

    Raises:
        Conflict: the present status does not admit a request.
    """
    state = session_state(session)
    effects: list[Effect] = []
    for event in events:
        state, more = step(state, event)
        effects += more
    slots = kernel_slots or {}
    kernels = tuple(
        _merge_kernel(kernel, after, now, slots.get(kernel.id))
        for kernel, after in zip(session.kernels, state.kernels, strict=True)
    )
    new = _merge_session(session, state, kernels, now)
    told = [e for e in effects if isinstance(e, EmitEvent)]
    passed = [_PASSED[e.name] for e in told if e.kernel_id is None and e.name in _PASSED]
    if new.status is not session.status:
        passed.append(new.status)
    if passed:
        history = {**session.status_history, **{status.value: now.isoformat() for status in passed}}
        new = replace(new, status_history=history)
    if new == session and not told:
        return None, tuple(effects)
    return Change(old=session, new=new, events=tuple(_draft(new, e) for e in told)), tuple(effects)


def enqueued_event(session: Session) -> EventDraft:
    """The first event of every session."""
    return _draft(session, EmitEvent(name="session_enqueued", session_id=session.id))


def fold(first: Change, second: Change) -> Change:
    """Two changes of one session in a row as one."""
    return Change(old=first.old, new=second.new, events=(*first.events, *second.events))
