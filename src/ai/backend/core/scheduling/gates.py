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


def check_start_time(session: PendingSession, now: datetime) -> Verdict | None:
    if session.starts_at is not None and session.starts_at > now:
        return SkipReason.NOT_YET, f"starts at {session.starts_at.strftime(_TIME_FORMAT)}"
    return None


def check_dependencies(session: PendingSession) -> Verdict | None:
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


def check_claim(session: PendingSession, taken_claims: Collection[str]) -> Verdict | None:
    """Returns why a session cannot start now because of its device claim.

    Returns None if nothing prevents it. ``taken_claims``: the claims that the current decision has given to other
    sessions.
    """
    if (session_claim := session.claim) is None:
        return None
    if session_claim.problem:
        return SkipReason.CLAIM_UNAVAILABLE, f"needs the claim {session_claim.name}: {session_claim.problem}"
    if session_claim.holders:
        return (
            SkipReason.CLAIM_IN_USE,
            f"waits for the claim {session_claim.name}, which session {session_claim.holders[0]} uses",
        )
    if session_claim.claim_id in taken_claims:
        return (
            SkipReason.CLAIM_IN_USE,
            f"waits for the claim {session_claim.name}, which another session of yours gets now",
        )
    return None


class _QuotaUsage:
    """Holds one quota with its present usage: the sessions, and the amounts of the slots that it limits."""

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

    def _usage_of(self, quota_name: str) -> _QuotaUsage | None:
        quota_usage = self._uses.get(quota_name)
        if quota_usage is None and (quota := self._quotas.get(quota_name)) is not None:
            quota_usage = self._uses[quota_name] = _QuotaUsage(quota)
        return quota_usage

    def check(self, session: PendingSession) -> Verdict | None:
        """Returns why the session's quotas do not let the session start.

        Returns None if the quotas permit the start.
        """
        requested_slots = session.total
        for quota_name in session.quotas:
            quota_usage = self._usage_of(quota_name)
            if quota_usage is None:
                continue
            quota = quota_usage.quota
            if quota.max_sessions is not None and quota_usage.sessions >= quota.max_sessions:
                return SkipReason.QUOTA_EXCEEDED, f"{quota.label} may run {quota.max_sessions} sessions at once"
            for slot, limit in quota_usage.limits:
                if requested_slots[slot] and quota_usage.used[slot] + requested_slots[slot] > limit:
                    amount_texts = (
                        explain.format_amount(slot, slots)
                        for slots in (quota.limit, ResourceSlot(quota_usage.used), requested_slots)
                    )
                    template = "{} may use {} and uses {} already; this session needs {}"
                    return SkipReason.QUOTA_EXCEEDED, template.format(quota.label, *amount_texts)
        return None

    def count_session(self, session: PendingSession, taken_slots: ResourceSlot) -> None:
        """Adds a started session to the usage. The session may take less than :meth:`check` has checked."""
        for quota_name in session.quotas:
            if (quota_usage := self._usage_of(quota_name)) is not None:
                quota_usage.sessions += 1
                for slot, _ in quota_usage.limits:
                    quota_usage.used[slot] += taken_slots[slot]
