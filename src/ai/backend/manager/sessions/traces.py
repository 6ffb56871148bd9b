"""Records the life of a session as spans of the trace that its creation began: one for each status."""

from __future__ import annotations

from collections.abc import Iterable

from ai.backend.common.states import SessionResult, SessionStatus
from ai.backend.infra.telemetry.tracing import current_traceparent, is_tracing, record_span
from ai.backend.manager.sessions.changes import Change


def trace_statuses(changes: Iterable[Change]) -> None:
    """Records, for each session that left a status, a span of the time in that status, with a link to the cause.

    A session that was created without a tracer has no trace.
    """
    if not is_tracing():
        return
    current_trace = current_traceparent()
    for change in changes:
        old_session, new_session = change.old, change.new
        if old_session.status is new_session.status or new_session.trace is None:
            continue
        has_failed = new_session.status is SessionStatus.ERROR or (
            new_session.status.is_final and new_session.result is SessionResult.FAILURE
        )
        agents = new_session.agent_ids or old_session.agent_ids
        record_span(
            f"session {old_session.status.value}",
            old_session.status_changed,
            new_session.status_changed,
            parent=new_session.trace,
            attributes={
                "backendai.session_id": str(new_session.id),
                "backendai.session_status": old_session.status.value,
                "backendai.session_next_status": new_session.status.value,
                "backendai.reason": new_session.reason.value,
                **({"backendai.agents": ",".join(agents)[:256]} if agents else {}),
            },
            links=[change.cause, current_trace],
            failure=new_session.reason.value if has_failed else None,
        )
