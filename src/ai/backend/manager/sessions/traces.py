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
        old, new = change.old, change.new
        if old.status is new.status or new.trace is None:
            continue
        has_failed = new.status is SessionStatus.ERROR or (new.status.is_final and new.result is SessionResult.FAILURE)
        agents = new.agent_ids or old.agent_ids
        record_span(
            f"session {old.status.value}",
            old.status_changed,
            new.status_changed,
            parent=new.trace,
            attributes={
                "backendai.session_id": str(new.id),
                "backendai.session_status": old.status.value,
                "backendai.session_next_status": new.status.value,
                "backendai.reason": new.reason.value,
                **({"backendai.agents": ",".join(agents)[:256]} if agents else {}),
            },
            links=[change.cause, current_trace],
            failure=new.reason.value if has_failed else None,
        )
