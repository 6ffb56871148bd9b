"""Checks that do not depend on agents: start time, dependencies, quotas."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SessionResult, SessionStatus
from ai.backend.core.scheduling import explain
from ai.backend.core.scheduling.index.equivalence import Verdict
from ai.backend.core.scheduling.plan import SkipReason
from ai.backend.core.scheduling.snapshot import PendingSession, Quota

_TIME = "%Y-%m-%d %H:%M:%S %Z"
_FAILED = (SessionStatus.ERROR, SessionStatus.CANCELLED)


def timing(session: PendingSession, now: datetime) -> Verdict | None:
    if session.starts_at is not None and session.starts_at > now:
        return SkipReason.NOT_YET, f"starts at {session.starts_at.strftime(_TIME)}"
    return None


def dependency(session: PendingSession) -> Verdict | None:
    for d in session.dependencies:
        if d.status in _FAILED or d.result is SessionResult.FAILURE:
            return SkipReason.DEPENDENCY_FAILED, f"depends on session {d.name}, which did not succeed"
    for d in session.dependencies:
        if d.status is not SessionStatus.TERMINATED:
            return SkipReason.DEPENDENCY_UNFINISHED, f"waits for session {d.name}, which is {d.status}"
    return None


class _Use:
    """Counts the usage of one quota, of the slots that it limits."""

    __slots__ = ("limits", "quota", "sessions", "used")

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.limits = tuple(quota.limit.items())
        self.used = {slot: quota.used[slot] for slot, _ in self.limits}
        self.sessions = quota.sessions


class Quotas:
    """Tracks the usage of quotas, including the sessions that the current decision has placed."""

    def __init__(self, quotas: Mapping[str, Quota]) -> None:
        self._quotas = quotas
        self._uses: dict[str, _Use] = {}

    def _use(self, name: str) -> _Use | None:
        use = self._uses.get(name)
        if use is None and (quota := self._quotas.get(name)) is not None:
            use = self._uses[name] = _Use(quota)
        return use

    def exceeded(self, session: PendingSession) -> Verdict | None:
        """Returns why the quotas of the session do not let it start; None if they do."""
        total = session.total
        for name in session.quotas:
            use = self._use(name)
            if use is None:
                continue
            quota = use.quota
            if quota.max_sessions is not None and use.sessions >= quota.max_sessions:
                return SkipReason.QUOTA_EXCEEDED, f"{quota.label} may run {quota.max_sessions} sessions at once"
            for slot, limit in use.limits:
                if total[slot] and use.used[slot] + total[slot] > limit:
                    amounts = (explain.amount(slot, s) for s in (quota.limit, ResourceSlot(use.used), total))
                    text = "{} may use {} and uses {} already; this session needs {}"
                    return SkipReason.QUOTA_EXCEEDED, text.format(quota.label, *amounts)
        return None

    def count(self, session: PendingSession) -> None:
        """Adds a started session to the usage."""
        total = session.total
        for name in session.quotas:
            if (use := self._use(name)) is not None:
                use.sessions += 1
                for slot, _ in use.limits:
                    use.used[slot] += total[slot]
