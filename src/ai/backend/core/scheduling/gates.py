"""Checks the conditions of a session that do not depend on agents: start time, dependencies, quotas."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SessionResult, SessionStatus
from ai.backend.core.scheduling import explain
from ai.backend.core.scheduling.index.equivalence import Verdict
from ai.backend.core.scheduling.plan import SkipReason
from ai.backend.core.scheduling.snapshot import PendingSession, Quota

_TIME_FORMAT = "%Y-%m-%d %H:%M:%S %Z"
_FAILED_STATUSES = (SessionStatus.ERROR, SessionStatus.CANCELLED)


def timing(session: PendingSession, now: datetime) -> Verdict | None:
    if session.starts_at is not None and session.starts_at > now:
        return SkipReason.NOT_YET, f"starts at {session.starts_at.strftime(_TIME_FORMAT)}"
    return None


def dependency(session: PendingSession) -> Verdict | None:
    for required_session in session.dependencies:
        if required_session.status in _FAILED_STATUSES or required_session.result is SessionResult.FAILURE:
            return SkipReason.DEPENDENCY_FAILED, f"depends on session {required_session.name}, which did not succeed"
    for required_session in session.dependencies:
        if required_session.status is not SessionStatus.TERMINATED:
            return (
                SkipReason.DEPENDENCY_UNFINISHED,
                f"waits for session {required_session.name}, which is {required_session.status}",
            )
    return None


def claim(session: PendingSession, taken: Collection[str]) -> Verdict | None:
    """Returns why the session cannot get its device claim now.

    Returns None if nothing prevents it. ``taken``: the claims that the current decision has given to other sessions.
    """
    if (claimed := session.claim) is None:
        return None
    if claimed.problem:
        return SkipReason.CLAIM_UNAVAILABLE, f"needs the claim {claimed.name}: {claimed.problem}"
    if claimed.holders:
        return SkipReason.CLAIM_IN_USE, f"waits for the claim {claimed.name}, which session {claimed.holders[0]} uses"
    if claimed.claim_id in taken:
        return SkipReason.CLAIM_IN_USE, f"waits for the claim {claimed.name}, which another session of yours gets now"
    return None


class _QuotaUsage:
    """Counts the usage of the slots that one quota limits."""

    __slots__ = ("limits", "quota", "sessions", "used")

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.limits = tuple(quota.limit.items())
        self.used = {slot_name: quota.used[slot_name] for slot_name, _ in self.limits}
        self.sessions = quota.sessions


class Quotas:
    """Tracks the usage of quotas, including the sessions that the current decision has placed."""

    def __init__(self, quotas: Mapping[str, Quota]) -> None:
        self._quotas = quotas
        self._uses: dict[str, _QuotaUsage] = {}

    def _usage_of(self, name: str) -> _QuotaUsage | None:
        quota_usage = self._uses.get(name)
        if quota_usage is None and (quota := self._quotas.get(name)) is not None:
            quota_usage = self._uses[name] = _QuotaUsage(quota)
        return quota_usage

    def exceeded(self, session: PendingSession) -> Verdict | None:
        """Returns why the session's quotas do not let the session start.

        Returns None if the quotas permit the start.
        """
        requested_slots = session.total
        for name in session.quotas:
            quota_usage = self._usage_of(name)
            if quota_usage is None:
                continue
            quota = quota_usage.quota
            if quota.max_sessions is not None and quota_usage.sessions >= quota.max_sessions:
                return SkipReason.QUOTA_EXCEEDED, f"{quota.label} may run {quota.max_sessions} sessions at once"
            for slot, limit in quota_usage.limits:
                if requested_slots[slot] and quota_usage.used[slot] + requested_slots[slot] > limit:
                    format_amounts = (
                        explain.format_amount(slot, limited_slot)
                        for limited_slot in (quota.limit, ResourceSlot(quota_usage.used), requested_slots)
                    )
                    text = "{} may use {} and uses {} already; this session needs {}"
                    return SkipReason.QUOTA_EXCEEDED, text.format(quota.label, *format_amounts)
        return None

    def count(self, session: PendingSession, taken_slots: ResourceSlot) -> None:
        """Adds a started session to the usage. The session may take less than :meth:`exceeded` has checked."""
        for name in session.quotas:
            if (quota_usage := self._usage_of(name)) is not None:
                quota_usage.sessions += 1
                for slot, _ in quota_usage.limits:
                    quota_usage.used[slot] += taken_slots[slot]
