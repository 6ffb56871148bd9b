"""Evaluates the idle rules of one session: which limits are exceeded, and how much time the other limits leave."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from ai.backend.common.states import KernelEventReason, SessionType
from ai.backend.core.idle.rules import NETWORK_TIMEOUT, SESSION_LIFETIME, UTILIZATION, Limits, UtilizationRule
from ai.backend.core.idle.window import Window

EXPIRE_AFTER, GRACE_PERIOD = "expire_after", "grace_period"
_REASON_BY_CHECKER = {
    NETWORK_TIMEOUT: KernelEventReason.IDLE_TIMEOUT,
    SESSION_LIFETIME: KernelEventReason.IDLE_SESSION_LIFETIME,
    UTILIZATION: KernelEventReason.IDLE_UTILIZATION,
}


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the session that idle checks evaluate: type, first start, last access and usage.

    The last access is that of the session's user, or the last start.
    """

    session_type: SessionType
    started_at: datetime
    last_access: datetime
    usage: Window | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the result of one idle check.

    ``remaining_s`` is None if it cannot be computed yet; ``extra`` explains it.
    """

    remaining_s: float | None
    kind: str = EXPIRE_AFTER
    extra: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the result as clients read it, in whole non-negative seconds."""
        remaining_s = None if self.remaining_s is None else max(0, int(self.remaining_s))
        return {"remaining": remaining_s, "remaining_time_type": self.kind, "extra": self.extra}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the overall result of all idle checks of a session. ``reason`` is None while the session may continue."""

    reason: KernelEventReason | None
    reports: Mapping[str, Report]


def evaluate(subject: Subject, limits: Limits, *, now: datetime, slack_s: float = 0.0) -> Verdict:
    """Evaluates all idle checks of a running session. The last access may have been ``slack_s`` later than stated.

    A batch session has no user to wait for and an inference session is used by others, so neither has a network
    timeout; only interactive and batch sessions are judged by what they use.
    """
    reports: dict[str, Report] = {}
    exceeded_checkers: list[str] = []
    if limits.network_timeout_s is not None and subject.session_type is SessionType.INTERACTIVE:
        remaining_s = limits.network_timeout_s - (now - subject.last_access).total_seconds()
        reports[NETWORK_TIMEOUT] = Report(remaining_s=remaining_s)
        if remaining_s <= -slack_s:
            exceeded_checkers.append(NETWORK_TIMEOUT)
    if limits.lifetime_s is not None:
        remaining_s = limits.lifetime_s - (now - subject.started_at).total_seconds()
        reports[SESSION_LIFETIME] = Report(remaining_s=remaining_s)
        if remaining_s <= 0:
            exceeded_checkers.append(SESSION_LIFETIME)
    if limits.utilization is not None and subject.session_type is not SessionType.INFERENCE:
        report, is_idle = _judge_utilization(subject, limits.utilization, now)
        reports[UTILIZATION] = report
        if is_idle:
            exceeded_checkers.append(UTILIZATION)
    return Verdict(reason=_REASON_BY_CHECKER[exceeded_checkers[0]] if exceeded_checkers else None, reports=reports)


def _judge_utilization(subject: Subject, rule: UtilizationRule, now: datetime) -> tuple[Report, bool]:
    usage = subject.usage or Window(rule.window_s)
    averages = {name: usage.average(name, now) for name in rule.thresholds}
    rounded_averages = {name: None if value is None else round(value, 3) for name, value in averages.items()}
    resources = {name: [value, rule.thresholds[name]] for name, value in rounded_averages.items()}
    report_extra = {"resources": resources, "thresholds_check_operator": "and" if rule.needs_all else "or"}
    age_s = (now - subject.started_at).total_seconds()
    if age_s < rule.grace_s:
        return Report(remaining_s=rule.grace_s - age_s, kind=GRACE_PERIOD, extra=report_extra), False
    are_below = [value < rule.thresholds[name] for name, value in averages.items() if value is not None]
    is_underused = bool(are_below) and (all(are_below) if rule.needs_all else any(are_below))
    if usage.is_complete(now):
        return Report(remaining_s=0 if is_underused else None, extra=report_extra), is_underused
    # The earliest end, if usage stays as it is.
    first_bucket_s = min((bucket_number * usage.step_s for bucket_number in usage.buckets), default=now.timestamp())
    remaining_s = max(0.0, first_bucket_s + rule.window_s - now.timestamp())
    return Report(remaining_s=remaining_s if is_underused else None, extra=report_extra), False
