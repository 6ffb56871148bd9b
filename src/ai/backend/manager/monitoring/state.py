"""Exports the manager's own metrics of sessions, loops and the leader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ai.backend.common.states import LIVE_SESSION_STATUSES, AgentStatus, SessionStatus
from ai.backend.common.wire.reports import MetricFamily, MetricSample
from ai.backend.infra.clock import Clock
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.manager.leadership.service import LEADER_LEASE
from ai.backend.manager.leadership.store import LeaseStore
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.store import SessionStore

_METRIC_PREFIX = "backendai_manager_"


class AgentCounts(Protocol):
    """Counts the agents of the installation."""

    async def count_by_status(self) -> Mapping[AgentStatus, int]: ...


@dataclass(eq=False, repr=False)
class InstallationState:
    """Exports the state of sessions, agents and the loops of the leader to Prometheus.

    ``loops`` returns those of this process, which run only while it leads.
    """

    sessions: SessionStore
    agents: AgentCounts
    leases: LeaseStore | None
    clock: Clock
    loops: Callable[[], Iterable[PeriodicLoop]] = field(default=tuple)
    _ended: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)
    _statuses: Mapping[SessionStatus, int] = field(default_factory=dict, init=False)

    def count_end(self, session: Session) -> None:
        """Counts a session that has ended, by its status and the reason."""
        self._ended[session.status.value, session.reason.value] += 1

    async def gauges(self) -> Mapping[str, float]:
        """Returns the metrics that are read from the database at each scrape."""
        agents = await self.agents.count_by_status()
        statuses = await self.sessions.live_statuses()
        self._statuses = {status: count for status, (count, _) in statuses.items()}
        _, waiting_since = statuses.get(SessionStatus.PENDING, (0, self.clock.now()))
        waiting_s = (self.clock.now() - waiting_since).total_seconds()
        holders = await self.leases.holders(LEADER_LEASE) if self.leases is not None else {LEADER_LEASE: "this process"}
        return {
            "agents_alive": agents.get(AgentStatus.ALIVE, 0),
            "agents_lost": agents.get(AgentStatus.LOST, 0),
            "sessions_live": sum(self._statuses.values()),
            "sessions_oldest_pending_seconds": max(0.0, waiting_s),
            "leader_elected": float(LEADER_LEASE in holders),
        }

    def families(self) -> Iterable[MetricFamily]:
        """Returns the metrics that have labels, such as the live sessions by status, as this process counts them."""
        yield _metric_family(
            "sessions",
            "Live sessions by status.",
            {(("status", status.value),): self._statuses.get(status, 0) for status in LIVE_SESSION_STATUSES},
        )
        yield _metric_family(
            "sessions_ended_total",
            "Sessions that this process has seen end, by status and reason.",
            {(("reason", reason), ("status", status)): count for (status, reason), count in self._ended.items()},
        )
        loops = list(self.loops())
        yield _metric_family(
            "loop_failures_total",
            "Rounds of a loop that have failed.",
            {(("loop", loop.name),): loop.failures for loop in loops},
        )
        yield _metric_family(
            "loop_succeeded_timestamp_seconds",
            "When the last round of a loop succeeded; before the first, when the loop began.",
            {(("loop", loop.name),): loop.succeeded_at for loop in loops if loop.succeeded_at},
        )
        yield _metric_family(
            "loop_period_seconds",
            "The longest time between two rounds of a loop.",
            {(("loop", loop.name),): loop.period_s for loop in loops},
        )


def _metric_family(name: str, help_: str, values: Mapping[tuple[tuple[str, str], ...], float]) -> MetricFamily:
    metric_kind = "counter" if name.endswith("_total") else "gauge"
    samples = [MetricSample(labels=dict(labels), value=value) for labels, value in values.items()]
    return MetricFamily(name=_METRIC_PREFIX + name, kind=metric_kind, help=help_, samples=samples)
