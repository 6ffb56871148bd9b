"""Decides which sessions are idle, and reports the remaining time to their users (peer facts 4.8)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from ai.backend.common.ids import AccessKey, SessionId
from ai.backend.common.states import SessionStatus
from ai.backend.core.idle.evaluate import Subject, Verdict, evaluate
from ai.backend.core.idle.rules import Limits, Rules, read_rules
from ai.backend.core.idle.window import Window
from ai.backend.infra.clock import Clock
from ai.backend.infra.config_store import ConfigStore
from ai.backend.manager.identity.model import ResourcePolicy
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.idle.activity import WRITE_INTERVAL_S, ActivityTracker
from ai.backend.manager.idle.store import Activity, ActivityStore
from ai.backend.manager.metrics.live import LiveMetrics
from ai.backend.manager.sessions.lookup import with_live_statistics
from ai.backend.manager.sessions.model import Kernel, Session

log = logging.getLogger(__name__)
CONFIG_KEY = "config/idle"
EVALUATED_STATUSES = frozenset({SessionStatus.RUNNING, SessionStatus.RUNNING_DEGRADED})
_MAX_METRIC_VALUE = 2**63
_ACTIVITY_SLACK_S = 2 * WRITE_INTERVAL_S
"""Seconds of tolerance for accesses that a manager has not stored yet."""


class IdleCheckResult(msgspec.Struct, frozen=True):
    """Holds the result of the idle checks of one session; ``usage`` is the measured usage, if there is one."""

    session: Session
    verdict: Verdict
    usage: Window | None


def utilization(kernels: Sequence[Kernel], names: Sequence[str]) -> dict[str, float]:
    """Returns the utilization of a session in percent of its kernels' capacity; metrics without reports are left out.
    If all kernels report capacities, amounts and capacities are added, so that kernels count by their size; else the
    percentages are averaged.
    """
    percents: dict[str, float] = {}
    for name in names:
        measurements = [measurement for kernel in kernels if (measurement := _metric_values(kernel, name)) is not None]
        if not measurements:
            continue
        capacities = [capacity for _, capacity, _ in measurements if capacity]
        if len(capacities) == len(measurements):
            percents[name] = sum(used_amount for used_amount, _, _ in measurements) / sum(capacities) * 100
        else:
            percents[name] = sum(percent for _, _, percent in measurements) / len(measurements)
    return percents


def _metric_values(kernel: Kernel, name: str) -> tuple[float, float, float] | None:
    """Returns value, capacity (or zero) and percent of a kernel's metric, or None if one of them is no number."""
    metric = (kernel.live_stat or kernel.last_stat or {}).get(name)
    if not isinstance(metric, Mapping):
        return None
    try:
        capacity = metric.get("capacity")
        measurement = float(metric["current"]), float(capacity) if capacity else 0.0, float(metric.get("pct") or 0)
    except (KeyError, OverflowError, TypeError, ValueError):
        return None
    return measurement if all(0 <= value < _MAX_METRIC_VALUE for value in measurement) else None


@dataclass(eq=False, repr=False)
class IdleService:
    """Evaluates the idle rules with the activities, limits and usage of sessions."""

    activities: ActivityStore
    tracker: ActivityTracker
    identities: IdentityStore
    config: ConfigStore
    stats: LiveMetrics
    clock: Clock

    def __post_init__(self) -> None:
        self._faults: tuple[str, ...] = ()

    async def rules(self) -> Rules:
        """Returns the idle rules of the shared configuration, and logs new malformed values."""
        config_values = await self.config.get_prefix(CONFIG_KEY)
        rules = read_rules({key.removeprefix(CONFIG_KEY).lstrip("/"): value for key, value in config_values.items()})
        for rule_fault in rules.faults if rules.faults != self._faults else ():
            log.warning("%s/%s", CONFIG_KEY, rule_fault)
        self._faults = rules.faults
        return rules

    async def has_limits(self) -> bool:
        """Returns True if an idle rule, or the resource policy of any keypair, limits sessions.

        A policy limits sessions by an idle timeout or a maximum lifetime.
        """
        rules = await self.rules()
        return rules != Rules(faults=rules.faults) or any(map(_has_session_limits, await self.identities.policies()))

    async def _limits(self, access_keys: set[AccessKey], rules: Rules) -> dict[AccessKey, Limits]:
        """Returns the limits of the sessions of each given keypair, without keypairs that have no limits."""
        policies = {policy.name: policy for policy in await self.identities.policies()}
        if rules == Rules(faults=rules.faults) and not any(map(_has_session_limits, policies.values())):
            return {}
        limits: dict[AccessKey, Limits] = {}
        for access_key in access_keys:
            keypair = await self.identities.keypair(access_key)
            policy = policies.get(keypair.resource_policy) if keypair is not None else None
            idle_timeout_s, lifetime_s = (policy.idle_timeout, policy.max_session_lifetime) if policy else (0, 0)
            limits[access_key] = Limits.of(rules, idle_timeout_s=idle_timeout_s, max_lifetime_s=lifetime_s)
        return {access_key: key_limits for access_key, key_limits in limits.items() if key_limits != Limits()}

    async def evaluate(
        self, sessions: Sequence[Session], windows: Mapping[SessionId, Window] | None = None, *, measure: bool = False
    ) -> list[IdleCheckResult]:
        """Applies the idle rules to the running sessions that have limits, and returns a result for each of them.

        ``windows`` is usage that is newer than what is stored; ``measure`` adds the present usage.
        """
        running_sessions = [
            session for session in sessions if session.status in EVALUATED_STATUSES and session.started_at is not None
        ]
        if not running_sessions:
            return []
        limits = await self._limits({session.access_key for session in running_sessions}, await self.rules())
        limited_sessions = [session for session in running_sessions if session.access_key in limits]
        if not limited_sessions:
            return []
        activities = await self.tracker.load([session.id for session in limited_sessions])
        now = self.clock.now()
        results = []
        for session in limited_sessions:
            session_limits = limits[session.access_key]
            activity = activities.get(session.id, Activity(session_id=session.id))
            window = (windows or {}).get(session.id)
            usage = self._measured_usage(session, session_limits, activity, window, now if measure else None)
            idle_subject = Subject(
                session_type=session.type,
                started_at=session.started_at or session.created_at,
                last_access=max(_running_since(session), activity.last_access or session.created_at),
                usage=usage,
            )
            results.append(
                IdleCheckResult(
                    session, evaluate(idle_subject, session_limits, now=now, slack_s=_ACTIVITY_SLACK_S), usage
                )
            )
        return results

    def _measured_usage(
        self, session: Session, limits: Limits, activity: Activity, window: Window | None, measured_at: datetime | None
    ) -> Window | None:
        rule = limits.utilization
        if rule is None:
            return None
        if window is None or window.length_s != rule.window_s:
            window = Window.from_json(activity.usage, rule.window_s)
        # the statistics of kernels whose agents are silent are old
        if measured_at is None or session.status is not SessionStatus.RUNNING:
            return window
        percents = utilization(with_live_statistics(session, self.stats).kernels, tuple(rule.thresholds))
        return window.add(measured_at, percents) if percents else window

    async def put_usage(self, windows: Mapping[SessionId, Window]) -> None:
        """Stores the recent measurements of the utilization of sessions, which the idle rules use."""
        await self.activities.put_usage({session_id: window.to_json() for session_id, window in windows.items()})

    async def reports(self, sessions: Sequence[Session]) -> Mapping[SessionId, Mapping[str, Any]]:
        """Returns the remaining time of each session before each idle check ends it (GraphQL ``idle_checks``).

        The keys are the session and the checker; each report has ``remaining``, ``remaining_time_type`` and ``extra``.
        Sessions without limits are left out.
        """
        return {
            result.session.id: {name: report.to_json() for name, report in result.verdict.reports.items()}
            for result in await self.evaluate(sessions)
        }


def _has_session_limits(policy: ResourcePolicy) -> bool:
    return policy.idle_timeout > 0 or policy.max_session_lifetime > 0


def _running_since(session: Session) -> datetime:
    """Returns the time since which the session is RUNNING; a restart resets the idle time (spec 03-08)."""
    entered_at = session.status_history.get(SessionStatus.RUNNING.value)
    started_at = session.started_at or session.created_at
    return max(started_at, datetime.fromisoformat(entered_at)) if entered_at else started_at
