"""Applies the observations and statistics that agents report."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from ai.backend.common.errors import StaleVersion
from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.structs import replace
from ai.backend.common.wire.reports import (
    AgentReport,
    BeatReply,
    BeatReport,
    HeartbeatReply,
    KeptDevices,
    KeptDevicesOf,
    KernelObservation,
    ObservationReport,
    StatReport,
)
from ai.backend.core.lifecycle.events import KernelObserved
from ai.backend.infra.clock import Clock
from ai.backend.manager.agents.capabilities import has_quantities
from ai.backend.manager.agents.registration import AgentRegistry
from ai.backend.manager.metrics.live import LiveMetrics
from ai.backend.manager.sessions.changes import Change, EventDraft, ObservationAck
from ai.backend.manager.sessions.claims.model import bind_claim
from ai.backend.manager.sessions.model import Kernel, Session
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.transitions import advance, combine_changes, with_health, with_retry_delay
from ai.backend.manager.sessions.writer import SessionWriter

log = logging.getLogger(__name__)

_MAX_TRIES = 20
_MAX_STAT_LOADS = 512
"""Maximum number of kernels of one report whose sessions are looked up; the next report has the others."""


def _as_kernel_id(text: str) -> KernelId | None:
    try:
        return KernelId(UUID(text))
    except ValueError:
        return None


@dataclass(eq=False, repr=False, kw_only=True)
class ObservationService:
    """Applies the observations and statistics of agents, and passes heartbeats to the registry of agents. Implements
    :class:`ai.backend.common.wire.link.ManagerReports`. The transport has checked that ``agent_id`` is the peer's
    before it calls.
    """

    sessions: SessionStore
    registry: AgentRegistry
    writer: SessionWriter
    stats: LiveMetrics
    clock: Clock
    log_tail_bytes: int = 262_144
    is_shared: bool = False
    _acked: dict[AgentId, ObservationAck] = field(default_factory=dict, init=False)
    _locks: dict[AgentId, asyncio.Lock] = field(default_factory=dict, init=False)

    async def heartbeat(self, report: AgentReport) -> HeartbeatReply:
        """Registers or refreshes an agent. Raises as :meth:`AgentRegistry.heartbeat`."""
        return await self.registry.heartbeat(report)

    async def beat(self, report: BeatReport) -> BeatReply:
        """Passes a heartbeat that reports no change to the registry of agents."""
        return await self.registry.beat(report)

    # ---- observations ----

    async def observe(self, report: ObservationReport) -> int:
        """Applies observations in order and returns the highest ``seq`` that is durably applied. Repeated ones are
        skipped; those of kernels that are not on this agent are acknowledged and ignored."""
        agent, epoch = AgentId(report.agent_id), report.epoch
        self.registry.record_contact(agent)
        async with self._locks.setdefault(agent, asyncio.Lock()):
            applied_seq = await self._applied_seq(agent, epoch)
            new_observations = sorted(
                (
                    reported_observation
                    for reported_observation in report.observations
                    if reported_observation.seq > applied_seq
                ),
                key=lambda observation: observation.seq,
            )
            if not new_observations:
                return applied_seq
            ack = ObservationAck(agent_id=agent, epoch=epoch, seq=new_observations[-1].seq)
            # First: clients may request the log as soon as they see the end.
            await self._store_logs(agent, new_observations)
            await self._apply(agent, new_observations, ack)
            self._acked[agent] = ack
            return ack.seq

    async def _applied_seq(self, agent: AgentId, epoch: int) -> int:
        ack = self._acked.get(agent)
        if ack is None or ack.epoch != epoch or self.is_shared:
            ack = await self.sessions.acked(agent)
        return ack.seq if ack is not None and ack.epoch == epoch else 0

    async def _apply(self, agent: AgentId, new_observations: Sequence[KernelObservation], ack: ObservationAck) -> None:
        for tries in range(_MAX_TRIES):
            sessions = await self._sessions_of(new_observations, reload=tries > 0)
            changes = await self._with_claims(self._decide(agent, new_observations, sessions))
            ends_session = any(change.new.status.is_final for change in changes)
            crash_point_name = "commit-terminate" if ends_session else "commit-observe"
            if not changes:
                return  # a report that changes nothing is applied again without effect, so it needs no record
            try:
                await self.writer.commit(changes, point=crash_point_name, ack=ack)
            except StaleVersion:
                continue
            return
        raise StaleVersion("the observed sessions change too fast")

    async def _sessions_of(self, observations: Sequence[KernelObservation], *, reload: bool) -> dict[KernelId, Session]:
        kernel_ids = {
            kernel_id for observation in observations if (kernel_id := _as_kernel_id(observation.kernel_id)) is not None
        }
        sessions: dict[KernelId, Session] = {}
        if not reload and not self.is_shared:  # with several managers, cached copies may be stale
            cached_sessions = {kernel_id: self.writer.recent_session_of_kernel(kernel_id) for kernel_id in kernel_ids}
            sessions = {kernel_id: session for kernel_id, session in cached_sessions.items() if session is not None}
        uncached_ids = kernel_ids - sessions.keys()
        if uncached_ids:
            loaded_sessions = await self.sessions.of_kernels(uncached_ids)
            self.writer.cache(loaded_sessions)
            sessions.update(
                (kernel.id, session)
                for session in loaded_sessions
                for kernel in session.kernels
                if kernel.id in uncached_ids
            )
        return sessions

    def _decide(
        self, agent: AgentId, observations: Sequence[KernelObservation], sessions: Mapping[KernelId, Session]
    ) -> list[Change]:
        changes: dict[SessionId, Change] = {}
        now = self.clock.now()
        for observation in observations:
            kernel_id = _as_kernel_id(observation.kernel_id)
            session = sessions.get(kernel_id) if kernel_id is not None else None
            if kernel_id is None or session is None:
                continue
            earlier_change = changes.get(session.id)
            current_session = earlier_change.new if earlier_change is not None else session
            change = _observed_change(agent, kernel_id, observation, current_session, now)
            if change is not None:
                changes[session.id] = combine_changes(earlier_change, change) if earlier_change is not None else change
        return list(changes.values())

    async def _with_claims(self, changes: list[Change]) -> list[Change]:
        """Binds the device claims of sessions that have begun to run to the devices that their kernels have."""
        change_of_claim = {
            change.new.claim_id: change
            for change in changes
            if change.new.claim_id is not None and change.old.started_at is None and change.new.started_at is not None
        }
        if not change_of_claim:
            return changes
        claims = {claim.id: claim for claim in await self.sessions.claims_by_id(list(change_of_claim))}
        now = self.clock.now()
        return [
            replace(change, claim=bind_claim(claim, change.new.main.devices, now))
            if change_of_claim.get(change.new.claim_id) is change  # type: ignore[arg-type]  # a key of it
            and (claim := claims.get(change.new.claim_id)) is not None  # type: ignore[arg-type]
            else change
            for change in changes
        ]

    async def _store_logs(self, agent: AgentId, observations: Sequence[KernelObservation]) -> None:
        """Stores the logs of kernels that are on this agent. Others would be those of kernels of other agents."""
        tails = {
            kernel_id: observation.log_tail
            for observation in observations
            if observation.log_tail and (kernel_id := _as_kernel_id(observation.kernel_id)) is not None
        }
        if not tails:
            return
        sessions = await self._sessions_of(observations, reload=False)
        for kernel_id, tail in tails.items():
            if _kernel_on(agent, kernel_id, sessions.get(kernel_id)) is None:
                continue
            try:
                await self.sessions.put_log(kernel_id, tail[-max(1, self.log_tail_bytes) :])
            except Exception:  # a failure to store a log must not delay observations
                log.exception("could not store the log of kernel %s", kernel_id)

    async def kept_devices(self, req: KeptDevicesOf) -> KeptDevices:
        """Returns the devices of an agent that device claims hold, by the id of the claim."""
        claims = await self.sessions.claims_on(AgentId(req.agent_id))
        return KeptDevices(
            devices={
                str(claim.id): {slot: dict(amounts) for slot, amounts in claim.devices.items()} for claim in claims
            }
        )

    # ---- statistics ----

    async def report_stats(self, report: StatReport) -> None:
        """Keeps an agent's latest statistics in memory, except those of kernels that are not on the agent."""
        agent = AgentId(report.agent_id)
        kernel_id_of_name = {
            name: kernel_id for name in report.kernels if (kernel_id := _as_kernel_id(name)) is not None
        }
        unknown_ids = [kernel_id for kernel_id in kernel_id_of_name.values() if not self.writer.is_on(kernel_id, agent)]
        if unknown_ids:  # not cached: this process has just started, evicted them, or another manager placed them
            self.writer.cache(await self.sessions.of_kernels(unknown_ids[:_MAX_STAT_LOADS]))
        own_kernel_ids = {
            name: kernel_id for name, kernel_id in kernel_id_of_name.items() if self.writer.is_on(kernel_id, agent)
        }
        self.stats.put(report, own_kernel_ids)


def _kernel_on(agent: AgentId, kernel_id: KernelId, session: Session | None) -> Kernel | None:
    """Returns the kernel of a session, or None if the session has no such kernel on the agent."""
    kernels = session.kernels if session is not None else ()
    return next((kernel for kernel in kernels if kernel.id == kernel_id and kernel.agent == agent), None)


def _observed_change(
    agent: AgentId, kernel_id: KernelId, observation: KernelObservation, session: Session, now: datetime
) -> Change | None:
    kernel = _kernel_on(agent, kernel_id, session)
    if kernel is None or kernel.attempt != observation.attempt:
        return None
    detailed_session = _with_details(session, kernel, observation)
    health_events: tuple[EventDraft, ...] = ()
    if observation.unhealthy_devices is not None:
        detailed_session, health_events = with_health(detailed_session, kernel_id, observation.unhealthy_devices)
    event = KernelObserved(
        kernel_id=kernel_id,
        attempt=observation.attempt,
        status=observation.status,
        reason=observation.reason,
        exit_code=observation.exit_code,
        stimulus_id=f"report {observation.seq} of {agent}",
    )
    change = advance(detailed_session, event, now=now)
    if change is None:
        return Change(old=session, new=detailed_session, events=health_events) if detailed_session != session else None
    complete_change = replace(change, old=session, events=(*change.events, *health_events), cause=observation.trace)
    return with_retry_delay(complete_change, observation.retry_after_s, now)


def _countable_devices(observation: KernelObservation) -> dict[str, dict[str, str]] | None:
    """Returns the reported devices of a kernel, or None if the scheduler could not count with an amount of them."""
    if observation.devices is None or has_quantities(observation.devices):
        return observation.devices
    log.warning("the devices of the kernel %s are reported with amounts that are none", observation.kernel_id)
    return None


def _hook_troubles(observation: KernelObservation) -> dict[str, dict[str, Any]]:
    """Returns the latest fault of each hook, by plugin and method."""
    return {
        f"{trouble.plugin}.{trouble.method}"[:200]: {
            "state": trouble.state,
            "message": trouble.message[:500],
            "since": trouble.since,
        }
        for trouble in observation.hook_troubles[:100]
    }


def _with_details(session: Session, kernel: Kernel, observation: KernelObservation) -> Session:
    """Returns the session with the details that an agent observed of a kernel, except the kernel's status."""
    details: dict[str, Any] = {
        "container_id": observation.workload_id,
        "devices": _countable_devices(observation),
        "attached_devices": observation.attached_devices,
        "service_ports": tuple(observation.service_ports) if observation.service_ports is not None else None,
        "last_stat": observation.last_stat,
    }
    status_data = dict(kernel.status_data)
    if observation.message:
        status_data["message"] = observation.message[:2000]
    if observation.hook_troubles:
        status_data["hooks"] = {**status_data.get("hooks", {}), **_hook_troubles(observation)}
    details["status_data"] = status_data
    changed_details = {
        name: value for name, value in details.items() if value is not None and getattr(kernel, name) != value
    }
    if not changed_details:
        return session
    changed_kernel = replace(kernel, **changed_details)
    detailed_session = replace(
        session,
        kernels=tuple(
            changed_kernel if session_kernel.id == kernel.id else session_kernel for session_kernel in session.kernels
        ),
    )
    if observation.message and (observation.status.is_final or observation.status == "PENDING"):
        error = {"kernel": str(kernel.id), "reason": observation.reason.value, "message": observation.message[:2000]}
        detailed_session = replace(detailed_session, status_data={**session.status_data, "error": error})
    return detailed_session
