"""Detects silent agents, and sessions that stay in a transient state too long."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

from ai.backend.common import states
from ai.backend.common.errors import BackendError
from ai.backend.common.ids import AgentId, KernelId
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle import events
from ai.backend.core.scheduling.options import read
from ai.backend.infra.clock import Ages, Clock
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.manager.agents.model import Agent
from ai.backend.manager.agents.registration import AgentRegistry
from ai.backend.manager.agents.settings import AgentSettings
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.resource_groups.store import ResourceGroupStore
from ai.backend.manager.sessions.changes import Change
from ai.backend.manager.sessions.model import STARTED_OVER, Session
from ai.backend.manager.sessions.settings import SessionSettings
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.transitions import advance
from ai.backend.manager.sessions.writer import SessionWriter
from ai.backend.manager.topics import AGENTS

log = logging.getLogger(__name__)

S = states.SessionStatus
_TRANSIENT_STATUSES = (*states.STARTING_SESSION_STATUSES, S.RUNNING_DEGRADED, S.RESTARTING)
"""Statuses that every round checks. PENDING is added where there is a limit, RUNNING while an agent is lost."""


@dataclass(eq=False, repr=False, kw_only=True)
class WatchdogLoop(PeriodicLoop):
    """Marks silent agents as lost, and ends or moves on sessions that wait or start too long or lose their agents.

    A session may be starting or RESTARTING for a limited time, and PENDING if its resource group limits that. A session
    of lost agents starts again or ends, or is degraded until the agents come back.
    """

    period_s = 3.0

    sessions: SessionStore
    agents: AgentStore
    resource_groups: ResourceGroupStore
    writer: SessionWriter
    registry: AgentRegistry
    clock: Clock
    session_settings: SessionSettings
    agent_settings: AgentSettings

    def __post_init__(self) -> None:
        self._resumed_at = self._last_round_at = self.clock.monotonic()
        self._ages = Ages(self.clock)

    async def once(self) -> None:
        self._ages.next_round()
        self._detect_suspension()
        agents = {
            agent.id: agent for agent in [await self._refresh_if_silent(agent) for agent in await self.agents.agents()]
        }
        pending_limits = await self._pending_limits()
        watched_statuses = set(_TRANSIENT_STATUSES)
        if pending_limits:
            watched_statuses.add(S.PENDING)
        if any(_is_lost(agent) for agent in agents.values()):
            watched_statuses.add(S.RUNNING)
        for session in await self.sessions.by_status(watched_statuses):
            event = self._due_event(session, agents, pending_limits)
            if event is not None:
                await self._advance(session, event, agents, pending_limits)

    # ---- agents ----

    def _detect_suspension(self) -> None:
        """Detects that this process was suspended, so that agents do not count as silent for that time."""
        now = self.clock.monotonic()
        if now - self._last_round_at > self.agent_settings.heartbeat_timeout_s + self.period_s:
            self._resumed_at = now
        self._last_round_at = now

    async def _refresh_if_silent(self, agent: Agent) -> Agent:
        is_silent = self.registry.is_silent(agent.id, since=self._resumed_at)
        if agent.status is states.AgentStatus.LOST and not is_silent:
            # A slow transaction has stored LOST after a heartbeat; the next heartbeat registers the agent again.
            self.registry.mark_lost(agent.id)
        if agent.status is states.AgentStatus.ALIVE and is_silent:
            log.warning("agent %s counts as lost: %s", agent.id, self.registry.loss_of(agent.id) or "it is silent")
            self.registry.mark_lost(agent.id)
            await self.agents.set_status(agent.id, states.AgentStatus.LOST, at=self.clock.now())
            self.registry.bus.publish(AGENTS)
            return await self.agents.agent(agent.id) or agent
        return agent

    # ---- sessions ----

    async def _pending_limits(self) -> dict[str, float]:
        """Returns resource group -> limit of the waiting time in seconds; groups without a limit are left out."""
        groups = await self.resource_groups.resource_groups()
        limits_s = {group.name: read(group.scheduler_opts).pending_timeout_s for group in groups}
        return {name: limit_s for name, limit_s in limits_s.items() if limit_s > 0}

    def _due_event(
        self, session: Session, agents: dict[AgentId, Agent], pending_limits: dict[str, float]
    ) -> events.SessionEvent | None:
        """Returns the event that the age of a session's status or a lost agent causes, or None if there is no such
        event.
        """
        age_s = self._ages.of(session.id, session.status_changed)
        if session.status is S.PENDING:
            waiting_since = max(session.created_at, session.starts_at or session.created_at)
            if STARTED_OVER in session.status_data:
                waiting_since = max(waiting_since, session.status_changed)
            limit_s = pending_limits.get(session.scaling_group)
            if limit_s is not None and self._ages.of(session.id, waiting_since) > limit_s:
                return events.SessionDestroyRequested(reason=states.KernelEventReason.PENDING_TIMEOUT)
            return None
        lost_kernels = [
            kernel for kernel in session.kernels if kernel.agent is not None and _is_lost(agents.get(kernel.agent))
        ]
        if session.status in states.STARTING_SESSION_STATUSES:
            return self._late_start_event(session, age_s, frozenset(kernel.id for kernel in lost_kernels))
        if session.status is S.RESTARTING and age_s > self.session_settings.restart_timeout_s:
            return events.SessionDestroyRequested(reason=states.KernelEventReason.RESTART_TIMEOUT)
        given_up_ids = frozenset(
            kernel.id
            for kernel in lost_kernels
            if kernel.agent is not None and self._seconds_lost(agents.get(kernel.agent)) > self.agent_settings.abandon_s
        )
        if given_up_ids:
            return events.KernelsAbandoned(kernel_ids=given_up_ids)
        if session.status is S.RUNNING and lost_kernels:
            return events.SessionDegraded()
        if session.status is S.RUNNING_DEGRADED and not lost_kernels:
            return events.SessionRecovered()
        return None

    def _late_start_event(
        self, session: Session, age_s: float, lost_kernel_ids: frozenset[KernelId]
    ) -> events.SessionEvent | None:
        if lost_kernel_ids:
            return events.SessionCreationFailed(
                kernel_ids=lost_kernel_ids, reason=states.KernelEventReason.AGENT_LOST, retryable=True
            )
        settings = self.session_settings
        if age_s > (settings.pull_timeout_s if session.status is S.PULLING else settings.start_timeout_s):
            late_kernel_ids = frozenset(
                kernel.id for kernel in session.kernels if kernel.status is not states.KernelStatus.RUNNING
            )
            reason = states.KernelEventReason.FAILED_TO_START
            return events.SessionCreationFailed(kernel_ids=late_kernel_ids, reason=reason, retryable=False)
        return None

    def _seconds_lost(self, agent: Agent | None) -> float:
        if agent is None:
            return math.inf
        return self._ages.of(agent.id, agent.lost_at) if agent.lost_at is not None else 0.0

    async def _advance(
        self,
        session: Session,
        event: events.SessionEvent,
        agents: dict[AgentId, Agent],
        pending_limits: dict[str, float],
    ) -> None:
        log.info("session %s is %s: %s", session.id, session.status, type(event).__name__)

        def make_change(session: Session) -> Change | None:
            due_event = self._due_event(session, agents, pending_limits)
            if due_event is None:
                return None
            change = advance(session, replace(due_event, stimulus_id="watchdog"), now=self.clock.now())
            if change is None or not isinstance(due_event, events.KernelsAbandoned) or change.new.status is S.PENDING:
                return change
            return _with_explanation(change, due_event.kernel_ids)

        try:
            await self.writer.transition(session.id, make_change, point="commit-abandon")
        except BackendError as e:
            log.warning("the watchdog could not change session %s: %s", session.id, e)


def _with_explanation(change: Change, abandoned_ids: frozenset[KernelId]) -> Change:
    """Adds to a session and its abandoned kernels a message that says which files are lost with the agent."""

    def details_of(agent: AgentId | None) -> dict[str, Any]:
        message = (
            f"The agent {agent} was lost and has not come back. What was in the session's home is lost with it;"
            " virtual folders are not."
        )
        return {"error": {"code": states.KernelEventReason.AGENT_LOST.value, "message": message, "agent": agent}}

    kernels = tuple(
        replace(kernel, status_data={**kernel.status_data, **details_of(kernel.agent)})
        if kernel.id in abandoned_ids
        else kernel
        for kernel in change.new.kernels
    )
    agent = next(kernel.agent for kernel in change.old.kernels if kernel.id in abandoned_ids)
    status_data = {**change.new.status_data, **details_of(agent)}
    return replace(change, new=replace(change.new, status_data=status_data, kernels=kernels))


def _is_lost(agent: Agent | None) -> bool:
    return agent is None or agent.status in (states.AgentStatus.LOST, states.AgentStatus.TERMINATED)
