"""What agents report: inventory, observations, statistics (:class:`ai.backend.common.wire.link.ManagerReports`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from ai.backend.common.errors import NotFound, StaleVersion
from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.images import architecture_name
from ai.backend.common.names import check_slug
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus
from ai.backend.common.wire.reports import (
    AgentReport,
    HeartbeatReply,
    KernelObservation,
    ObservationReport,
    OverlayReport,
    StatReport,
)
from ai.backend.core.lifecycle.events import KernelObserved
from ai.backend.infra.bus import Bus
from ai.backend.infra.clock import Clock
from ai.backend.manager.agents.assignments import Assignments
from ai.backend.manager.agents.model import Agent, SlotTypeInfo
from ai.backend.manager.agents.overlay import admitted
from ai.backend.manager.agents.registration import _BEAT_S, _slot_types, _without
from ai.backend.manager.agents.settings import AgentSettings
from ai.backend.manager.agents.slots import SlotCatalogue
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.metrics.live import LiveMetrics
from ai.backend.manager.sessions.changes import Change, ObservationAck
from ai.backend.manager.sessions.events import EventDraft
from ai.backend.manager.sessions.lifecycle.reconcile import KernelReconciler
from ai.backend.manager.sessions.model import Kernel, Session
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.transitions import advance, deferred, fold, note_health
from ai.backend.manager.sessions.writer import SessionWriter
from ai.backend.manager.topics import LAUNCH, SCHEDULE

log = logging.getLogger(__name__)

_TRIES = 20
_STAT_LOADS = 512
"""Kernels of one report of statistics whose sessions are looked up; the next report has the others."""


def _as_kernel_id(text: str) -> KernelId | None:
    try:
        return KernelId(UUID(text))
    except ValueError:
        return None


class ReportsService:
    """Implements ManagerReports. The transport has bound ``agent_id`` to the peer before it calls."""

    def __init__(
        self,
        *,
        sessions: SessionStore,
        agents: AgentStore,
        identities: IdentityStore,
        slots: SlotCatalogue,
        writer: SessionWriter,
        stats: LiveMetrics,
        presence: KernelReconciler,
        bus: Bus,
        clock: Clock,
        settings: AgentSettings,
        assignments: Assignments,
        log_tail_bytes: int = 262_144,
        is_shared: bool = False,
    ) -> None:
        self._is_shared = is_shared
        self._log_tail_bytes = max(1, log_tail_bytes)
        self._sessions = sessions
        self._agents = agents
        self._identities = identities
        self._slots = slots
        self._writer = writer
        self._stats = stats
        self._presence = presence
        self._bus = bus
        self._clock = clock
        self._settings = settings
        self._known: dict[AgentId, bytes] = {}
        self._written: dict[AgentId, float] = {}
        self._newest: dict[AgentId, tuple[int, int]] = {}
        """Agent -> epoch and number of its newest heartbeat."""
        self.last_seen: dict[AgentId, float] = {}
        """Agent -> monotonic time of its last sign of life in this process."""
        self.leads: Callable[[], bool] = lambda: True
        """Whether this manager runs the loops; only that one says which kernels an agent should not have."""
        self._acked: dict[AgentId, tuple[int, int]] = {}
        self._assignments = assignments
        self._locks: dict[AgentId, asyncio.Lock] = {}
        self._registering = asyncio.Lock()

    # ---- heartbeats ----

    async def heartbeat(self, report: AgentReport) -> HeartbeatReply:
        """Register or refresh an agent and compare what it holds with what it should hold.

        Raises:
            NotFound: its resource group does not exist. InvalidName, InvalidInput: a malformed report.
        """
        agent_id = AgentId(check_slug(report.agent_id, what="agent_id", allow_dots=True))
        if self._is_old(agent_id, report):
            return HeartbeatReply(interval_s=self._settings.heartbeat_interval_s)
        monotonic = self._clock.monotonic()
        self.last_seen[agent_id] = monotonic  # it lives, even if what it says cannot be written now
        fingerprint = msgspec.msgpack.encode(msgspec.structs.replace(report, kernels=[], number=0))
        if self._known.get(agent_id) != fingerprint:
            is_whole = await self._register(agent_id, report)
            self._known[agent_id] = fingerprint if is_whole else b""
            self._written[agent_id] = monotonic
            self._bus.publish(SCHEDULE)
            self._bus.publish(LAUNCH)
        elif monotonic - self._written.get(agent_id, 0.0) >= _BEAT_S:
            await self._agents.beat(agent_id, at=self._clock.now())
            self._written[agent_id] = monotonic
        unknown = await self._presence.compare(agent_id, report.kernels) if self.leads() else []
        return HeartbeatReply(interval_s=self._settings.heartbeat_interval_s, unknown_kernels=unknown)

    def _is_old(self, agent_id: AgentId, report: AgentReport) -> bool:
        """Whether a newer report was here before, or this one: what it says is not so any more."""
        place = report.epoch, report.number
        if report.number and place <= self._newest.get(agent_id, (0, 0)):
            log.info("an old heartbeat of agent %s is ignored", agent_id)
            return True
        self._newest[agent_id] = place
        return False

    @property
    def registered(self) -> Collection[AgentId]:
        """Agents that have told this process what they have, and are not lost since."""
        return self._known.keys()

    def mark_lost(self, agent_id: AgentId) -> None:
        """The next heartbeat registers the agent anew."""
        self._known.pop(agent_id, None)

    async def _register(self, agent_id: AgentId, report: AgentReport) -> bool:
        """Returns whether all of it is in force; what another agent keeps from it may be later."""
        if await self._identities.resource_group(report.resource_group) is None:
            raise NotFound(
                f"There is no resource group {report.resource_group[:64]!r}; create it or change the agent's settings.",
                data={"resource_group": report.resource_group[:64]},
            )
        slot_types = _slot_types(report)
        async with self._registering:
            overlay = await self._admitted(agent_id, report.overlay)
            await self._store(agent_id, msgspec.structs.replace(report, overlay=overlay), slot_types)
        return overlay == report.overlay

    async def _admitted(self, agent_id: AgentId, told: OverlayReport | None) -> OverlayReport | None:
        if told is None or told.why_not:
            return told
        others = await self._agents.underlays()
        others.pop(agent_id, None)
        found = admitted(told, others)
        if found.why_not and self._known.get(agent_id) != b"":
            log.warning("agent %s takes no part in networks over several agents: %s", agent_id, found.why_not)
        return found

    async def _store(self, agent_id: AgentId, report: AgentReport, slot_types: Sequence[SlotTypeInfo]) -> None:
        now = self._clock.now()
        offered = ResourceSlot.parse({s.slot_name: s.amount for s in report.slots}).nonzero()
        refused = await self._slots.report(agent_id, slot_types)
        report = _without(report, refused)
        known = await self._agents.agent(agent_id)
        slots = ResourceSlot({name: q for name, q in offered.items() if name not in refused})
        alive = known is not None and known.status is AgentStatus.ALIVE
        await self._agents.put_agent(
            Agent(
                id=agent_id,
                status=AgentStatus.ALIVE,
                status_changed=known.status_changed if known is not None and alive else now,
                epoch=report.epoch,
                region=report.region,
                architecture=architecture_name(report.architecture),
                scaling_group=await self._assignments.group_of(agent_id, report.resource_group),
                schedulable=known.schedulable if known is not None else True,
                available_slots=slots,
                addr=report.addr,
                first_contact=known.first_contact if known is not None else now,
                last_heartbeat=now,
                version=report.version,
                runtime=report.runtime,
                tier=report.tier,
                enforcement={name: e.value for name, e in report.enforcement.items()},
                generation=report.generation,
                devices=tuple(report.devices),
                plugins=tuple(report.plugins),
                images=tuple(report.images),
                runtime_classes=tuple(report.runtime_classes),
                overlay=report.overlay,
                location=tuple(report.location),
                kernel_limit=report.kernel_limit,
            )
        )
        if known is None:
            log.info("agent %s joined %s with %s", agent_id, report.resource_group, slots.to_json())

    def lead(self) -> None:
        """Begin to lead: what agents are is learnt anew from each of them, and silence counts from now on."""
        self._known.clear()
        self._presence.forget()

    # ---- observations ----

    async def observe(self, report: ObservationReport) -> int:
        """Apply in order and return the highest ``seq`` that is durably applied.

        Repeated ones are skipped; those of kernels that are not (or not any more) on this agent are acknowledged
        and void.
        """
        agent, epoch = AgentId(report.agent_id), report.epoch
        self.last_seen[agent] = self._clock.monotonic()
        async with self._locks.setdefault(agent, asyncio.Lock()):
            done = await self._highest(agent, epoch)
            fresh = sorted((o for o in report.observations if o.seq > done), key=lambda o: o.seq)
            if not fresh:
                return done
            ack = ObservationAck(agent_id=agent, epoch=epoch, seq=fresh[-1].seq)
            await self._keep_logs(fresh)  # first: whoever sees the end may ask for the log at once
            await self._apply(agent, fresh, ack)
            self._acked[agent] = (epoch, ack.seq)
            return ack.seq

    async def _highest(self, agent: AgentId, epoch: int) -> int:
        known = self._acked.get(agent)
        if known is not None and known[0] == epoch and not self._is_shared:
            return known[1]
        return await self._sessions.acked(agent, epoch)

    async def _apply(self, agent: AgentId, fresh: Sequence[KernelObservation], ack: ObservationAck) -> None:
        for attempt in range(_TRIES):
            sessions = await self._sessions_of(fresh, reload=attempt > 0)
            changes = self._decide(agent, fresh, sessions)
            ends = any(c.new.status.is_final for c in changes)
            point = "commit-terminate" if ends else "commit-observe"
            try:
                await self._writer.commit(changes, point=point, ack=ack)
            except StaleVersion:
                continue
            return
        raise StaleVersion("the observed sessions change too fast")

    async def _sessions_of(self, fresh: Sequence[KernelObservation], *, reload: bool) -> dict[KernelId, Session]:
        wanted = {k for o in fresh if (k := _as_kernel_id(o.kernel_id)) is not None}
        found: dict[KernelId, Session] = {}
        if not reload and not self._is_shared:  # a copy that others made stale would make an observation mean nothing
            for kernel_id in wanted:
                session = self._writer.recent_of_kernel(kernel_id)
                if session is not None:
                    found[kernel_id] = session
        missing = wanted - found.keys()
        if missing:
            loaded = await self._sessions.of_kernels(missing)
            self._writer.note(loaded)
            found.update((k.id, s) for s in loaded for k in s.kernels if k.id in missing)
        return found

    def _decide(
        self, agent: AgentId, fresh: Sequence[KernelObservation], sessions: Mapping[KernelId, Session]
    ) -> list[Change]:
        changes: dict[SessionId, Change] = {}
        now = self._clock.now()
        for observation in fresh:
            kernel_id = _as_kernel_id(observation.kernel_id)
            session = sessions.get(kernel_id) if kernel_id is not None else None
            if kernel_id is None or session is None:
                continue
            before = changes.get(session.id)
            current = before.new if before is not None else session
            change = self._observed(agent, kernel_id, observation, current, now)
            if change is not None:
                changes[session.id] = fold(before, change) if before is not None else change
        return list(changes.values())

    def _observed(
        self, agent: AgentId, kernel_id: KernelId, seen: KernelObservation, session: Session, now: datetime
    ) -> Change | None:
        kernel = next((k for k in session.kernels if k.id == kernel_id), None)
        if kernel is None or kernel.agent != agent or kernel.attempt != seen.attempt:
            return None
        detailed = _with_details(session, kernel, seen)
        told: tuple[EventDraft, ...] = ()
        if seen.unhealthy_devices is not None:
            detailed, told = note_health(detailed, kernel_id, seen.unhealthy_devices)
        event = KernelObserved(
            kernel_id=kernel_id,
            attempt=seen.attempt,
            status=seen.status,
            reason=seen.reason,
            exit_code=seen.exit_code,
            stimulus_id=f"report {seen.seq} of {agent}",
        )
        change = advance(detailed, event, now=now)
        if change is None:
            return Change(old=session, new=detailed, events=told) if detailed != session else None
        whole = replace(change, old=session, events=(*change.events, *told))
        return deferred(whole, seen.retry_after_s, now)

    async def _keep_logs(self, fresh: Sequence[KernelObservation]) -> None:
        for observation in fresh:
            kernel_id = _as_kernel_id(observation.kernel_id)
            if observation.log_tail and kernel_id is not None:
                try:
                    await self._sessions.put_log(kernel_id, observation.log_tail[-self._log_tail_bytes :])
                except Exception:  # the log of a kernel is worth less than the agent's observations
                    log.exception("could not keep the log of kernel %s", kernel_id)

    # ---- statistics ----

    async def report_stats(self, report: StatReport) -> None:
        """Keep the newest statistics in memory. An agent speaks only for kernels that are on it."""
        agent = AgentId(report.agent_id)
        named = {text: kernel_id for text in report.kernels if (kernel_id := _as_kernel_id(text)) is not None}
        unknown = [k for k in named.values() if not self._writer.is_on(k, agent)]
        if unknown:  # this process has just started, or forgot them for others, or another manager placed them
            self._writer.note(await self._sessions.of_kernels(unknown[:_STAT_LOADS]))
        mine = {text: kernel_id for text, kernel_id in named.items() if self._writer.is_on(kernel_id, agent)}
        self._stats.put(report, mine)


def _troubles(seen: KernelObservation) -> dict[str, dict[str, Any]]:
    """By plugin and method, the newest news of each."""
    return {
        f"{t.plugin}.{t.method}"[:200]: {"state": t.state, "message": t.message[:500], "since": t.since}
        for t in seen.hook_troubles[:100]
    }


def _with_details(session: Session, kernel: Kernel, seen: KernelObservation) -> Session:
    """The session with what the observation tells besides the status."""
    told: dict[str, Any] = {}
    if seen.workload_id is not None:
        told["container_id"] = seen.workload_id
    if seen.devices is not None:
        told["devices"] = seen.devices
    if seen.attached_devices is not None:
        told["attached_devices"] = seen.attached_devices
    if seen.service_ports is not None:
        told["service_ports"] = tuple(seen.service_ports)
    if seen.last_stat is not None:
        told["last_stat"] = seen.last_stat
    data = dict(kernel.status_data)
    if seen.message:
        data["message"] = seen.message[:2000]
    if seen.hook_troubles:
        data["hooks"] = {**data.get("hooks", {}), **_troubles(seen)}
    told["status_data"] = data
    changed = {name: value for name, value in told.items() if getattr(kernel, name) != value}
    if not changed:
        return session
    after = replace(kernel, **changed)
    detailed = replace(session, kernels=tuple(after if k.id == kernel.id else k for k in session.kernels))
    if seen.message and (seen.status.is_final or seen.status == "PENDING"):
        error = {"error": {"kernel": str(kernel.id), "reason": seen.reason.value, "message": seen.message[:2000]}}
        detailed = replace(detailed, status_data={**session.status_data, **error})
    return detailed
