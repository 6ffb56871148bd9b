"""Compares the kernels of an agent with those that it should have.

Kernels that only the agent has are orphans, which it must end; kernels that only the manager has are missing. Commands
and observations may be on their way, so a kernel counts as missing after two heartbeats in a row and a grace period.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.common.wire.reports import KernelPresence
from ai.backend.core.lifecycle.events import KernelsAbandoned, SessionCreationFailed
from ai.backend.core.lifecycle.kernel import PROGRESS, is_orphan
from ai.backend.infra.clock import Clock
from ai.backend.manager.agents.model import KernelOccupancy
from ai.backend.manager.agents.settings import AgentSettings
from ai.backend.manager.sessions.changes import Change
from ai.backend.manager.sessions.model import Kernel, Session
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.transitions import advance, kernel_state
from ai.backend.manager.sessions.writer import SessionWriter

log = logging.getLogger(__name__)


class KernelReconciler:
    """Compares kernels at each heartbeat; remembers those that were missing at the last one."""

    def __init__(self, store: SessionStore, writer: SessionWriter, clock: Clock, settings: AgentSettings) -> None:
        self._store = store
        self._writer = writer
        self._clock = clock
        self._settings = settings
        self._missing: dict[AgentId, set[tuple[KernelId, int]]] = {}

    async def compare(self, agent_id: AgentId, reported: Sequence[KernelPresence]) -> list[KernelPresence]:
        """Handles missing kernels and returns the orphans."""
        expected = {str(h.kernel_id): h for h in await self._store.held([agent_id])}
        present = {p.kernel_id for p in reported}
        missing = {(h.kernel_id, h.attempt) for text, h in expected.items() if text not in present and self._is_due(h)}
        confirmed = missing & self._missing.get(agent_id, set())
        self._missing[agent_id] = missing
        removed: dict[SessionId, dict[KernelId, int]] = {}
        for holding in expected.values():
            if (holding.kernel_id, holding.attempt) in confirmed:
                removed.setdefault(holding.session_id, {})[holding.kernel_id] = holding.attempt
        for session_id, attempts in removed.items():
            await self._handle(session_id, agent_id, attempts)
        suspects = [p for p in reported if not p.status.is_final and not _is_due_there(expected.get(p.kernel_id), p)]
        return await self._orphans(agent_id, suspects) if suspects else []

    def forget(self) -> None:
        """Forgets missing kernels, so that a kernel must be missing twice again."""
        self._missing.clear()

    def _is_due(self, holding: KernelOccupancy) -> bool:
        """Returns True if the agent should have the kernel by now; SCHEDULED kernels belong to the launch loop."""
        # An age below zero means that the wall clock was set back.
        grace, age = timedelta(seconds=self._settings.presence_grace_s), self._clock.now() - holding.status_changed
        return holding.status is not KernelStatus.SCHEDULED and not timedelta() <= age <= grace

    async def _orphans(self, agent_id: AgentId, suspects: Sequence[KernelPresence]) -> list[KernelPresence]:
        """Returns the orphans by the newest rows: a session may have been placed since the first read."""
        ids = [k for p in suspects if (k := _kernel_id(p)) is not None]
        kernels = {str(k.id): k for s in await self._store.of_kernels(ids) for k in s.kernels}
        return [p for p in suspects if _is_orphan(kernels.get(p.kernel_id), agent_id, p.attempt)]

    async def _handle(self, session_id: SessionId, agent_id: AgentId, attempts: Mapping[KernelId, int]) -> None:
        log.warning("agent %s does not have %d kernels of session %s any more", agent_id, len(attempts), session_id)
        reason, cause = KernelEventReason.WORKLOAD_NOT_FOUND, f"presence report of {agent_id}"

        def make(session: Session) -> Change | None:
            current = [k for k in session.kernels if attempts.get(k.id) == k.attempt and k.agent == agent_id]
            ids = frozenset(k.id for k in current if len(k.holds))
            if not ids:
                return None
            now = self._clock.now()
            if all(k.status in PROGRESS for k in session.kernels if k.id in ids):
                failed = SessionCreationFailed(kernel_ids=ids, reason=reason, retryable=True, stimulus_id=cause)
                return advance(session, failed, now=now)
            return advance(session, KernelsAbandoned(kernel_ids=ids, reason=reason, stimulus_id=cause), now=now)

        await self._writer.transition(session_id, make, point="commit-abandon")


def _kernel_id(presence: KernelPresence) -> KernelId | None:
    try:
        return KernelId(UUID(presence.kernel_id))
    except ValueError:
        return None


def _is_due_there(holding: KernelOccupancy | None, presence: KernelPresence) -> bool:
    return holding is not None and holding.attempt <= presence.attempt


def _is_orphan(kernel: Kernel | None, agent_id: AgentId, attempt: int) -> bool:
    state = kernel_state(kernel, is_main=True) if kernel is not None else None
    return is_orphan(state, agent_id=agent_id, attempt=attempt)
