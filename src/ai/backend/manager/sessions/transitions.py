"""Applies the state machines of ``core.lifecycle`` to sessions and returns the changes with slots and events. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, assert_never

import msgspec

from ai.backend.common.ids import KernelId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import KernelEventReason, KernelStatus, SessionStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.reports import UnhealthyDevice
from ai.backend.core.allocation.requests import amounts
from ai.backend.core.allocation.requests.compiled import RequestCompiler
from ai.backend.core.lifecycle.effects import (
    Command,
    CreateKernels,
    DestroyKernels,
    Effect,
    EmitEvent,
    ReleaseSlots,
    RestartKernels,
    TakeSlots,
)
from ai.backend.core.lifecycle.events import SessionEvent
from ai.backend.core.lifecycle.kernel import KernelState
from ai.backend.core.lifecycle.session import SessionPhase, SessionState, step
from ai.backend.core.lifecycle.transition import Transition, Transitions
from ai.backend.infra.retry import Backoff
from ai.backend.manager.sessions.changes import Change, EventDraft
from ai.backend.manager.sessions.model import STARTED_OVER, Kernel, Session

MAX_ATTEMPTS = 5
UNHEALTHY = "unhealthy_devices"
"""Key of ``status_data``: the failed devices."""
MAX_RETRY_AFTER_S = 3600.0
"""The longest wait that a plugin may request, see :func:`with_retry_delay`."""
_REQUEST_COMPILER = RequestCompiler()
_RETRY_BACKOFF = Backoff(0.5, MAX_RETRY_AFTER_S)
"""The wait of a session after a creation failed temporarily."""
RELOCATED_FROM = "relocated_from"
"""Key of a kernel's ``status_data``: the agent of the previous attempt, if it was another one."""
_STARTING_EVENTS = frozenset({"enqueued", "scheduled", "preparing", "pulling", "prepared", "creating"})


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
        kernels=tuple(kernel_state(kernel, is_main=index == 0) for index, kernel in enumerate(session.kernels)),
        session_type=session.type,
        phase=SessionPhase.STARTING_OVER if session.starting_over else SessionPhase(session.status.value),
        result=session.result,
        reason=session.reason,
        max_attempts=MAX_ATTEMPTS + _spent_attempts(session),
        recent_transitions=session.recent_transitions,
    )


def _kernel_of(session: Session, kernel_id: KernelId) -> Kernel:
    return next(kernel for kernel in session.kernels if kernel.id == kernel_id)


def _largest_amounts(slots: ResourceSlot, device_requests: Sequence[str]) -> ResourceSlot:
    return amounts.largest_slots(slots, [_REQUEST_COMPILER.compile(text) for text in device_requests])


def with_largest_amounts(session: Session) -> Session:
    """Returns a session whose kernels request the same slots again as before the session was placed."""
    if not session.device_requests:
        return session
    kernels = tuple(
        replace(kernel, requested_slots=_largest_amounts(kernel.requested_slots, session.device_requests))
        for kernel in session.kernels
    )
    return replace(session, kernels=kernels)


def _spent_attempts(session: Session) -> int:
    """Returns how many attempts of a session were made before it last started over, and do not count any more."""
    return int(session.status_data.get(STARTED_OVER, {}).get("attempts", 0))


def _start_over(session: Session) -> Session:
    """Returns a preempted session without its start times, and counts that it starts over."""
    restart_count = int(session.status_data.get(STARTED_OVER, {}).get("times", 0)) + 1
    start_over_counts = {"times": restart_count, "attempts": max(kernel.attempt for kernel in session.kernels)}
    status_data = {**session.status_data, STARTED_OVER: start_over_counts}
    return replace(session, started_at=None, not_before=None, status_data=status_data)


def _status_info(old_object: Session | Kernel, new_state: SessionState | KernelState) -> str | None:
    """Returns the text for ``status_info``: the new reason, or the stored text if status and reason did not change."""
    is_changed = (new_state.status, new_state.reason) != (old_object.status, old_object.reason)
    if is_changed and new_state.status == "RUNNING" and new_state.reason is KernelEventReason.RESTARTING:
        return None  # the restart is over
    return (
        new_state.reason.value
        if is_changed and new_state.reason is not KernelEventReason.UNKNOWN
        else old_object.status_info
    )


def _merge_kernel(
    kernel: Kernel,
    state: KernelState,
    now: datetime,
    placement_fields: Mapping[str, Any],
    slots: Mapping[KernelId, ResourceSlot],
    device_requests: Sequence[str],
) -> Kernel:
    """Returns the kernel with its new state; ``slots`` are the slots that kernels occupy after the change. While it
    waits it requests the largest amounts of the alternatives ``device_requests``, once placed those of one of them."""
    changes: dict[str, Any] = {
        "status": state.status,
        "reason": state.reason,
        "attempt": state.attempt,
        "agent": state.agent_id,
        "exit_code": state.exit_code,
    }
    if all(getattr(kernel, name) == value for name, value in changes.items()):
        return kernel
    changes["status_info"] = _status_info(kernel, state)
    if state.status is not kernel.status:
        changes["status_changed"] = now
    if state.status is KernelStatus.SCHEDULED and state.attempt > kernel.attempt:
        has_moved = kernel.agent is not None and kernel.agent != state.agent_id
        changes["status_data"] = {RELOCATED_FROM: kernel.agent} if has_moved else {}
    if kernel.id in slots:
        changes["occupied_slots"] = slots[kernel.id]
    if state.status is KernelStatus.RUNNING and kernel.started_at is None:
        changes["started_at"] = now
    if state.status.is_final and not kernel.status.is_final:
        changes["terminated_at"] = now
    if state.status is KernelStatus.PENDING:  # as if it had not started
        changes |= {"started_at": None, "exit_code": None}
        changes["status_data"] = _without_devices(kernel.status_data)
        changes["requested_slots"] = _largest_amounts(kernel.requested_slots, device_requests)
    return replace(kernel, **changes, **placement_fields)


def _reason_of(effect: EmitEvent) -> KernelEventReason:
    """Returns the reason of an event; an event of a session's start without a reason gets USER_REQUESTED."""
    is_start = effect.reason is KernelEventReason.UNKNOWN and effect.name.partition("_")[2] in _STARTING_EVENTS
    return KernelEventReason.USER_REQUESTED if is_start else effect.reason


def _draft_event(session: Session, effect: EmitEvent) -> EventDraft:
    payload: dict[str, Any] = {
        "sessionId": str(session.id),
        "sessionName": session.name,
        "ownerAccessKey": session.access_key,
        "reason": _reason_of(effect).value,
    }
    if effect.kernel_id is not None:
        kernel = _kernel_of(session, effect.kernel_id)
        payload |= {
            "kernelId": str(kernel.id),
            "clusterRole": kernel.cluster_role,
            "clusterIdx": kernel.cluster_idx,
            "agentId": kernel.agent,
        }
    if effect.exit_code is not None:
        payload["exitCode"] = effect.exit_code
    if effect.result is not None or effect.name == "session_terminated":
        payload["result"] = (effect.result or session.result).value
    return EventDraft(name=effect.name, session_id=session.id, kernel_id=effect.kernel_id, payload=payload)


def _merge_session(
    session: Session, state: SessionState, kernels: tuple[Kernel, ...], now: datetime, path: Sequence[Transition]
) -> Session:
    has_moved = state.status is not session.status
    entered_statuses = [new_status for old_status, new_status in map(_statuses, path) if new_status is not old_status]
    changes: dict[str, Any] = {
        "kernels": kernels,
        "status": state.status,
        "result": state.result,
        "reason": state.reason,
        "status_info": _status_info(session, state),
        "starting_over": state.phase is SessionPhase.STARTING_OVER,
        "recent_transitions": state.recent_transitions,
    }
    if entered_statuses:
        changes["status_history"] = {
            **session.status_history,
            **{status.value: now.isoformat() for status in entered_statuses},
        }
    if has_moved:
        changes["status_changed"] = now
    if state.status is SessionStatus.SCHEDULED and has_moved:
        kept_data = {name: value for name, value in session.status_data.items() if name == STARTED_OVER}
        changes |= {"scheduled_at": now, "status_info": None, "status_data": kept_data, "not_before": None}
    if state.status is SessionStatus.RUNNING and session.started_at is None:
        changes |= {"started_at": now, "status_info": None}
    starts_over = False
    if state.status is SessionStatus.PENDING and has_moved:
        changes["status_data"] = _without_devices(session.status_data)
        starts_over = path[-1].before == SessionPhase.STARTING_OVER
        if not starts_over:
            counted_attempts = max(kernel.attempt for kernel in kernels) - _spent_attempts(session)
            changes["not_before"] = now + timedelta(seconds=_RETRY_BACKOFF.delay_s(counted_attempts - 1))
    if state.status.is_final and has_moved:
        changes["terminated_at"] = now
    if has_moved and (state.status.is_final or state.status is SessionStatus.PENDING):
        changes |= {"vni": None, "network": None}
    new_status = replace(session, **changes)
    return _start_over(new_status) if starts_over else new_status


def _statuses(transition: Transition) -> tuple[SessionStatus, SessionStatus]:
    return SessionPhase(transition.before).status, SessionPhase(transition.after).status


def advance(
    session: Session,
    *events: SessionEvent,
    now: datetime,
    placements: Mapping[KernelId, Mapping[str, Any]] | None = None,
) -> Change | None:
    """Applies events to a session in their order and returns the change to save, with the commands to execute
    afterwards; None if there is neither. ``placements`` are fields of kernels that change with their placement. Raises
    InvalidTransition."""
    state = session_state(session)
    path: Transitions = ()
    effects: list[Effect] = []
    for event in events:
        state, transitions, step_effects = step(state, event)
        path += transitions
        effects += step_effects
    slots: dict[KernelId, ResourceSlot] = {}
    fields_by_kernel = placements or {}
    emitted_events: list[EmitEvent] = []
    commands: list[Command] = []
    for effect in effects:
        match effect:
            case TakeSlots(target=target):
                requested_slots = fields_by_kernel.get(target.kernel_id, {}).get("requested_slots")
                slots[target.kernel_id] = requested_slots or _kernel_of(session, target.kernel_id).requested_slots
            case ReleaseSlots(target=target):
                slots[target.kernel_id] = ResourceSlot()
            case EmitEvent():
                emitted_events.append(effect)
            case CreateKernels() | RestartKernels() | DestroyKernels():
                commands.append(effect)
            case _:
                assert_never(effect)
    kernels = tuple(
        _merge_kernel(kernel, kernel_state, now, fields_by_kernel.get(kernel.id, {}), slots, session.device_requests)
        for kernel, kernel_state in zip(session.kernels, state.kernels, strict=True)
    )
    new_session = _merge_session(session, state, kernels, now, path)
    if new_session == session and not emitted_events:
        return Change(old=session, new=session, commands=tuple(commands)) if commands else None
    return Change(
        old=session,
        new=new_session,
        events=tuple(_draft_event(new_session, effect) for effect in emitted_events),
        commands=tuple(commands),
    )


def with_retry_delay(change: Change, retry_after_s: float | None, now: datetime) -> Change:
    """Returns the change with a wait of ``retry_after_s`` or more if the session goes back to the scheduler."""
    new_session = change.new
    if (
        new_session.status is not SessionStatus.PENDING
        or change.old.status is SessionStatus.PENDING
        or not retry_after_s
    ):
        return change
    earliest_retry = now + timedelta(seconds=min(max(0.0, retry_after_s), MAX_RETRY_AFTER_S))
    return replace(
        change, new=replace(new_session, not_before=max(new_session.not_before or earliest_retry, earliest_retry))
    )


def enqueued_event(session: Session) -> EventDraft:
    """Returns the event that reports a new session."""
    return _draft_event(session, EmitEvent(name="session_enqueued", session_id=session.id))


def with_health(
    session: Session, kernel_id: KernelId, failed_devices: Sequence[UnhealthyDevice]
) -> tuple[Session, tuple[EventDraft, ...]]:
    """Returns the session with the failed devices of a kernel, and the events that report new or recovered devices.
    ``status_data["unhealthy_devices"]`` of the kernel lists those that it holds, that of the session those of all its
    kernels. The events are ``session_device_unhealthy`` and ``session_device_recovered``.
    """
    kernel = _kernel_of(session, kernel_id)
    if kernel.status.is_final:
        return session, ()
    old_devices = {
        (device["device_name"], device["device_id"]): device for device in kernel.status_data.get(UNHEALTHY, ())
    }
    new_devices = {(device.device_name, device.device_id): msgspec.to_builtins(device) for device in failed_devices}
    if old_devices == new_devices:
        return session, ()
    other_status_data = _without_devices(kernel.status_data)
    updated_kernel = replace(
        kernel,
        status_data={**other_status_data, UNHEALTHY: list(new_devices.values())} if new_devices else other_status_data,
    )
    kernels = tuple(updated_kernel if kernel.id == kernel_id else kernel for kernel in session.kernels)
    all_devices = [
        {**device, "kernel_id": str(session_kernel.id)}
        for session_kernel in kernels
        for device in session_kernel.status_data.get(UNHEALTHY, ())
    ]
    other_status_data = _without_devices(session.status_data)
    session = replace(
        session,
        kernels=kernels,
        status_data={**other_status_data, UNHEALTHY: all_devices} if all_devices else other_status_data,
    )
    devices_by_event = {
        "unhealthy": [device for device_key, device in new_devices.items() if old_devices.get(device_key) != device],
        "recovered": [
            {**device, "reason": ""} for device_key, device in old_devices.items() if device_key not in new_devices
        ],
    }
    return session, tuple(
        _device_event(session, kernel_id, event_name, devices)
        for event_name, devices in devices_by_event.items()
        if devices
    )


def _without_devices(status_data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in status_data.items() if name != UNHEALTHY}


def _device_event(
    session: Session, kernel_id: KernelId, health: str, devices: Sequence[Mapping[str, Any]]
) -> EventDraft:
    draft = _draft_event(
        session, EmitEvent(name=f"session_device_{health}", session_id=session.id, kernel_id=kernel_id)
    )
    details = {"reason": f"device-{health}", "devices": [dict(device) for device in devices]}
    return replace(draft, payload={**draft.payload, **details})


def combine_changes(first: Change, second: Change) -> Change:
    """Combines two successive changes of one session into one."""
    events, commands = (*first.events, *second.events), (*first.commands, *second.commands)
    cause = second.cause or first.cause
    claim = second.claim or first.claim
    return Change(old=first.old, new=second.new, events=events, commands=commands, claim=claim, cause=cause)
