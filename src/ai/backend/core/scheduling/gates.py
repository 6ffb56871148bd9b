"""What must be so before any agent is looked at: time, other sessions, quotas."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SessionResult, SessionStatus
from ai.backend.core.scheduling import explain
from ai.backend.core.scheduling.entries import Verdict
from ai.backend.core.scheduling.plan import SkipReason
from ai.backend.core.scheduling.snapshot import PendingSession, Quota

_FAILED = (SessionStatus.ERROR, SessionStatus.CANCELLED)


def timing(session: PendingSession, now: datetime) -> Verdict | None:
    if session.starts_at is not None and session.starts_at > now:
        return SkipReason.NOT_YET, f"starts at {session.starts_at.isoformat()}"
    return None


def dependency(session: PendingSession) -> Verdict | None:
    for d in session.dependencies:
        if d.status in _FAILED or d.result is SessionResult.FAILURE:
            return SkipReason.DEPENDENCY_FAILED, f"depends on session {d.name}, which did not succeed"
    for d in session.dependencies:
        if d.status is not SessionStatus.TERMINATED:
            return SkipReason.DEPENDENCY_UNFINISHED, f"waits for session {d.name}, which is {d.status}"
    return None


class Quotas:
    """What may still be used, counting what a decision has placed so far."""

    def __init__(self, quotas: Mapping[str, Quota]) -> None:
        self._quotas = quotas
        self._used: dict[str, ResourceSlot] = {}
        self._sessions: dict[str, int] = {}

    def _of(self, session: PendingSession) -> list[tuple[str, Quota]]:
        return [(name, self._quotas[name]) for name in session.quotas if name in self._quotas]

    def exceeded(self, session: PendingSession) -> Verdict | None:
        """Why the session may not start under its quotas."""
        total = session.total
        for name, quota in self._of(session):
            sessions = self._sessions.get(name, quota.sessions)
            if quota.max_sessions is not None and sessions >= quota.max_sessions:
                return SkipReason.QUOTA_EXCEEDED, f"{quota.label} may run {quota.max_sessions} sessions at once"
            used = self._used.get(name, quota.used)
            for slot, limit in quota.limit.items():
                wanted = total[slot]
                if wanted and used[slot] + wanted > limit:
                    text = (
                        f"{quota.label} may use {explain.amount(slot, quota.limit)} and uses "
                        f"{explain.amount(slot, used)} already; this session needs {explain.amount(slot, total)}"
                    )
                    return SkipReason.QUOTA_EXCEEDED, text
        return None

    def count(self, session: PendingSession) -> None:
        """The session starts."""
        for name, quota in self._of(session):
            self._used[name] = self._used.get(name, quota.used) + session.total
            self._sessions[name] = self._sessions.get(name, quota.sessions) + 1
