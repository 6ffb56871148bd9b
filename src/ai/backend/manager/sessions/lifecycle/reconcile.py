"""Compares the kernels that an agent reports with the kernels that the agent should have.

Kernels that only the agent has are orphans, which it must end; kernels that only the manager has are missing. Commands
and observations may be on their way, so a kernel counts as missing after two heartbeats in a row and a grace period.
Heartbeats of a former process of the agent may be on their way, too (decision 0712).

A database that was restored from a backup, or lost its newest commits with the power, is behind the agents: they have
kernels as later attempts than the rows, or run kernels that are still starting in the rows and whose reports were
acknowledged. The rows of the first get the agent's attempt; the agent reports the others again (decision 0408).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.reports import KernelPresence
from ai.backend.core.lifecycle.events import KernelsAbandoned, SessionCreationFailed
from ai.backend.core.lifecycle.kernel import PROGRESS, is_orphan
from ai.backend.infra.clock import Clock
from ai.backend.manager.agents.model import KernelOccupancy, PresenceDifferences
from ai.backend.manager.agents.settings import AgentSettings
from ai.backend.manager.sessions.changes import Change
from ai.backend.manager.sessions.model import Kernel, Session
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.transitions import advance, kernel_state
from ai.backend.manager.sessions.writer import SessionWriter

log = logging.getLogger(__name__)
_BEFORE_RUNNING = frozenset({*PROGRESS, KernelStatus.RESTARTING})
"""Statuses in which a stored kernel may already run on its agent."""


class KernelReconciler:
    """Compares the kernels that an agent reports with the stored kernels of the agent.

    A stored kernel that is missing in two reports is given up.
    """

    def __init__(self, store: SessionStore, writer: SessionWriter, clock: Clock, settings: AgentSettings) -> None:
        self._store = store
        self._writer = writer
        self._clock = clock
        self._settings = settings
        self._missing: dict[AgentId, set[tuple[KernelId, int]]] = {}
        self._unobserved: dict[AgentId, set[tuple[str, int]]] = {}
        self._earlier_epochs: dict[AgentId, tuple[int, float]] = {}
        """Agent -> the epoch of its reports while they are of an earlier epoch than the applied observations, and the
        monotonic time of the first of them that lacked a kernel."""

    async def compare(
        self, agent_id: AgentId, reported_kernels: Sequence[KernelPresence], epoch: int, observed_seq: int | None
    ) -> PresenceDifferences:
        """Fails stored kernels that two reports lacked, and returns how the reported kernels differ from the stored
        ones. It returns reported kernels that the agent should not have, and kernels whose start the manager has not
        seen although two reports say that they run.

        A report that is older than an observation that was applied may lack kernels which started since: it is not
        counted.
        """
        if agent_id in self._earlier_epochs and self._earlier_epochs[agent_id][0] < epoch:
            del self._earlier_epochs[agent_id]
        stored_kernels = [occupancy for occupancy in await self._store.held([agent_id]) if not occupancy.is_claim]
        expected_kernels = {str(occupancy.kernel_id): occupancy for occupancy in stored_kernels}
        present_ids = {presence.kernel_id for presence in reported_kernels}
        missing_attempts = {
            (expected_kernel.kernel_id, expected_kernel.attempt)
            for name, expected_kernel in expected_kernels.items()
            if name not in present_ids and self._should_exist(expected_kernel)
        }
        if missing_attempts and not await self._is_up_to_date(agent_id, epoch, observed_seq):
            missing_attempts = self._missing.get(agent_id, set())
            twice_missing: set[tuple[KernelId, int]] = set()
        else:
            twice_missing = missing_attempts & self._missing.get(agent_id, set())
        self._missing[agent_id] = missing_attempts
        removed_attempts: dict[SessionId, dict[KernelId, int]] = {}
        for occupancy in expected_kernels.values():
            if (occupancy.kernel_id, occupancy.attempt) in twice_missing:
                removed_attempts.setdefault(occupancy.session_id, {})[occupancy.kernel_id] = occupancy.attempt
        for session_id, attempts in removed_attempts.items():
            await self._fail_missing(session_id, agent_id, attempts)
        suspected_kernels = [
            reported_kernel
            for reported_kernel in reported_kernels
            if not reported_kernel.status.is_final
            and not _may_be_reported(expected_kernels.get(reported_kernel.kernel_id), reported_kernel)
        ]
        for presence in reported_kernels:
            stored_kernel = expected_kernels.get(presence.kernel_id)
            if stored_kernel is not None and stored_kernel.attempt < presence.attempt and not presence.status.is_final:
                await self._raise_attempt(stored_kernel, presence.attempt)
        return PresenceDifferences(
            unknown=await self._orphans(agent_id, suspected_kernels) if suspected_kernels else [],
            unobserved=self._twice_unobserved(agent_id, reported_kernels, expected_kernels),
        )

    async def _is_up_to_date(self, agent_id: AgentId, epoch: int, observed_seq: int | None) -> bool:
        """Returns True if a report is not older than the applied observations of its agent, otherwise False.

        Reports of an earlier epoch are of a dead process, or of an agent without its earlier data, whose epochs have
        begun anew. They count once no others came for as long as an agent may be silent.
        """
        ack = await self._store.acked(agent_id)
        if ack is None or epoch > ack.epoch:
            return True
        if epoch == ack.epoch:
            return observed_seq is None or observed_seq >= ack.seq
        now = self._clock.monotonic()
        earlier_epoch, first_seen_s = self._earlier_epochs.setdefault(agent_id, (epoch, now))
        return earlier_epoch == epoch and now - first_seen_s > self._settings.heartbeat_timeout_s

    def _twice_unobserved(
        self,
        agent_id: AgentId,
        reported_kernels: Sequence[KernelPresence],
        expected_kernels: Mapping[str, KernelOccupancy],
    ) -> list[KernelPresence]:
        """Returns kernels that two successive reports call RUNNING, although their stored status is before RUNNING."""
        unobserved_kernels = {
            (presence.kernel_id, presence.attempt): presence
            for presence in reported_kernels
            if presence.status is KernelStatus.RUNNING
            and (occupancy := expected_kernels.get(presence.kernel_id)) is not None
            and occupancy.status in _BEFORE_RUNNING
        }
        earlier_keys = self._unobserved.get(agent_id, set())
        self._unobserved[agent_id] = set(unobserved_kernels)
        return [presence for key, presence in unobserved_kernels.items() if key in earlier_keys]

    def forget(self) -> None:
        """Forgets missing kernels, so that a kernel must be missing twice again."""
        self._missing.clear()
        self._unobserved.clear()
        self._earlier_epochs.clear()

    def _should_exist(self, occupancy: KernelOccupancy) -> bool:
        """Returns True if the agent must have the kernel by now; a SCHEDULED kernel may still be unsent."""
        # An age below zero means that the wall clock was set back.
        grace_period, status_age = (
            timedelta(seconds=self._settings.presence_grace_s),
            self._clock.now() - occupancy.status_changed,
        )
        return occupancy.status is not KernelStatus.SCHEDULED and not timedelta() <= status_age <= grace_period

    async def _orphans(self, agent_id: AgentId, suspected_kernels: Sequence[KernelPresence]) -> list[KernelPresence]:
        """Returns those of the suspected kernels that still belong to no session when the store is read again.

        A session may have been placed since the kernels became suspected.
        """
        kernel_ids = [kernel_id for presence in suspected_kernels if (kernel_id := _kernel_id(presence)) is not None]
        kernels = {
            str(kernel.id): kernel for session in await self._store.of_kernels(kernel_ids) for kernel in session.kernels
        }
        return [
            presence
            for presence in suspected_kernels
            if _is_orphan(kernels.get(presence.kernel_id), agent_id, presence.attempt)
        ]

    async def _raise_attempt(self, occupancy: KernelOccupancy, attempt: int) -> None:
        """Sets the stored attempt of a kernel to the attempt that its agent reports. Attempts are stored before agents
        hear of them, so the row is older than what was stored once.
        """
        log.warning("the row of kernel %s is older than its attempt %d on the agent", occupancy.kernel_id, attempt)

        def make_change(session: Session) -> Change | None:
            kernels = tuple(
                replace(kernel, attempt=attempt)
                if kernel.id == occupancy.kernel_id and kernel.attempt < attempt and kernel.agent == occupancy.agent
                else kernel
                for kernel in session.kernels
            )
            return Change(old=session, new=replace(session, kernels=kernels)) if kernels != session.kernels else None

        await self._writer.transition(occupancy.session_id, make_change, point="commit-observe")

    async def _fail_missing(self, session_id: SessionId, agent_id: AgentId, attempts: Mapping[KernelId, int]) -> None:
        log.warning("agent %s does not have %d kernels of session %s any more", agent_id, len(attempts), session_id)
        reason, cause = KernelEventReason.WORKLOAD_NOT_FOUND, f"presence report of {agent_id}"

        def make_change(session: Session) -> Change | None:
            current_kernels = [
                session_kernel
                for session_kernel in session.kernels
                if attempts.get(session_kernel.id) == session_kernel.attempt and session_kernel.agent == agent_id
            ]
            lost_ids = frozenset(kernel.id for kernel in current_kernels if len(kernel.holds))
            if not lost_ids:
                return None
            now = self._clock.now()
            if all(kernel.status in PROGRESS for kernel in session.kernels if kernel.id in lost_ids):
                failure_event = SessionCreationFailed(
                    kernel_ids=lost_ids, reason=reason, retryable=True, stimulus_id=cause
                )
                return advance(session, failure_event, now=now)
            return advance(session, KernelsAbandoned(kernel_ids=lost_ids, reason=reason, stimulus_id=cause), now=now)

        await self._writer.transition(session_id, make_change, point="commit-abandon")


def _kernel_id(presence: KernelPresence) -> KernelId | None:
    try:
        return KernelId(UUID(presence.kernel_id))
    except ValueError:
        return None


def _may_be_reported(occupancy: KernelOccupancy | None, presence: KernelPresence) -> bool:
    return occupancy is not None and occupancy.attempt <= presence.attempt


def _is_orphan(kernel: Kernel | None, agent_id: AgentId, attempt: int) -> bool:
    machine_state = kernel_state(kernel, is_main=True) if kernel is not None else None
    return is_orphan(machine_state, agent_id=agent_id, attempt=attempt)
