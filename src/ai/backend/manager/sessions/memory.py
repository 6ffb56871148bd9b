"""Sessions in memory, with the semantics of the SQL store and exactly repeatable."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from ai.backend.common.errors import InsufficientResource, SessionAlreadyExists, StaleVersion
from ai.backend.common.ids import AccessKey, AgentId, DomainName, GroupId, KernelId, SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SessionStatus
from ai.backend.core.lifecycle.kernel import HOLDING
from ai.backend.manager.agents.model import Agent, KernelOccupancy
from ai.backend.manager.db.fence import check_fence
from ai.backend.manager.query.memory import select
from ai.backend.manager.query.model import Page
from ai.backend.manager.sessions import model
from ai.backend.manager.sessions.changes import (
    Change,
    Event,
    EventDraft,
    ObservationAck,
    Webhook,
    event_rows,
    slot_deltas,
    webhook_rows,
)
from ai.backend.manager.sessions.store import UNLIMITED


@dataclass
class Memory:
    """The contents of the in-memory stores of sessions and agents, which share one."""

    sessions: dict[SessionId, model.Session] = field(default_factory=dict)
    agents: dict[AgentId, Agent] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    event_id: int = 0
    callbacks: dict[int, Webhook] = field(default_factory=dict)
    callback_id: int = 0
    logs: dict[KernelId, bytes] = field(default_factory=dict)
    acks: dict[AgentId, tuple[int, int]] = field(default_factory=dict)


_OCCUPANCY = ("session_id", "agent", "status", "status_changed", "attempt", "devices")


def _age(session: model.Session) -> tuple[datetime, str]:
    return session.created_at, str(session.id)


class MemorySessionStore:
    """Implements :class:`ai.backend.manager.sessions.store.SessionStore`."""

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory or Memory()

    @property
    def _live(self) -> list[model.Session]:
        return sorted((s for s in self._memory.sessions.values() if not s.status.is_final), key=_age)

    def _named(self, access_key: AccessKey, name: str, *, but: SessionId | None = None) -> model.Session | None:
        return next((s for s in self._live if (s.access_key, s.name) == (access_key, name) and s.id != but), None)

    async def insert(
        self, session: model.Session, *, events: Sequence[EventDraft], limits: model.OwnerLimits = UNLIMITED
    ) -> None:
        m = self._memory
        check_fence()
        existing = m.sessions.get(session.id) or self._named(session.access_key, session.name)
        if existing is not None:
            raise SessionAlreadyExists(data={"existingSessionId": str(existing.id)})
        own = [s for s in self._live if s.access_key == session.access_key]
        if limits.max_live is not None and len(own) >= limits.max_live:
            raise model.too_many_sessions(limits.max_live)
        waiting = [*(s for s in own if s.status is SessionStatus.PENDING), session]
        requested = sum((k.requested_slots for s in waiting for k in s.kernels), ResourceSlot())
        limits.check_pending(len(waiting), requested)
        m.sessions[session.id] = session
        self._emit(session, events, session.created_at)

    async def save(self, changes: Sequence[Change], *, ack: ObservationAck | None = None) -> None:
        m = self._memory
        check_fence()
        for change in changes:
            stored = m.sessions.get(change.old.id)
            if stored is None or stored.version != change.old.version:
                raise StaleVersion(f"session {change.old.id} is not at version {change.old.version} any more")
            if not change.new.status.is_final:
                taken = self._named(change.new.access_key, change.new.name, but=change.new.id)
                if taken is not None:
                    raise SessionAlreadyExists(data={"existingSessionId": str(taken.id)})
        self._check_numbers(changes)
        moved = self._moved(slot_deltas(changes))
        for change in changes:
            stored = m.sessions[change.old.id]
            m.sessions[stored.id] = _with_side_fields(change, stored)
            self._emit(change.new, change.events, change.new.status_changed)
        m.agents.update(moved)
        if ack is not None:
            m.acks[ack.agent_id] = ack.epoch, ack.seq

    def _check_numbers(self, changes: Sequence[Change]) -> None:
        after = {**{i: s.vni for i, s in self._memory.sessions.items()}, **{c.new.id: c.new.vni for c in changes}}
        numbers = [vni for vni in after.values() if vni is not None]
        if len(numbers) != len(set(numbers)):
            raise StaleVersion("another session has the number of this one's network")

    async def networks(self) -> list[tuple[int, model.SessionNetwork]]:
        return [
            (s.vni, model.lasting(s.network, s.status))
            for s in self._live
            if s.vni is not None and s.network is not None
        ]

    def _moved(self, deltas: Mapping[AgentId, ResourceSlot]) -> dict[AgentId, Agent]:
        moved: dict[AgentId, Agent] = {}
        for agent_id, delta in deltas.items():
            agent = self._memory.agents.get(agent_id)
            if agent is None:
                continue
            occupied = (agent.occupied_slots + delta).nonzero()
            grows = [name for name, amount in delta.items() if amount > 0]
            if any(occupied[name] > agent.capacity[name] for name in grows):
                raise InsufficientResource(f"agent {agent_id} does not have as much free")
            moved[agent_id] = replace(agent, occupied_slots=occupied)
        return moved

    def _emit(self, session: model.Session, drafts: Sequence[EventDraft], at: datetime) -> None:
        m = self._memory
        for row in webhook_rows(session, drafts, at):
            m.callback_id += 1
            m.callbacks[m.callback_id] = Webhook(id=m.callback_id, **row)
        for row in event_rows(session, drafts, at):
            m.event_id += 1
            m.events.append(Event(id=m.event_id, **row))

    async def get(self, session_id: SessionId) -> model.Session | None:
        return self._memory.sessions.get(session_id)

    async def get_many(self, ids: Iterable[SessionId]) -> list[model.Session]:
        sessions = (self._memory.sessions.get(i) for i in dict.fromkeys(ids))
        return sorted((s for s in sessions if s is not None), key=_age)

    async def find_live(self, access_key: AccessKey | None, ref: str, *, limit: int = 10) -> list[model.Session]:
        own = [s for s in self._live if access_key is None or s.access_key == access_key]
        exact = [s for s in own if ref == s.name or ref.lower() == str(s.id)]
        if exact or not ref:
            return exact[:limit]
        return [s for s in own if s.name.startswith(ref) or str(s.id).startswith(ref.lower())][:limit]

    async def newest_named(self, access_key: AccessKey, name: str) -> model.Session | None:
        sessions = [s for s in self._memory.sessions.values() if (s.access_key, s.name) == (access_key, name)]
        return max(sessions, key=lambda s: s.created_at, default=None)

    async def by_status(self, statuses: Collection[SessionStatus]) -> list[model.Session]:
        return sorted((s for s in self._memory.sessions.values() if s.status in statuses), key=_age)

    async def refreshed(
        self, statuses: Collection[SessionStatus], cached: Callable[[SessionId], model.Session | None]
    ) -> list[model.Session]:
        return await self.by_status(statuses)

    async def of_kernels(self, kernel_ids: Collection[KernelId]) -> list[model.Session]:
        ids = set(kernel_ids)
        return sorted((s for s in self._memory.sessions.values() if ids & {k.id for k in s.kernels}), key=_age)

    async def on_agent(self, agent_id: AgentId) -> list[model.Session]:
        return [s for s in self._live if any(k.agent == agent_id for k in s.kernels)]

    async def held(self, agent_ids: Collection[AgentId]) -> list[KernelOccupancy]:
        return [
            KernelOccupancy(
                **{name: getattr(k, name) for name in _OCCUPANCY},
                kernel_id=k.id,
                access_key=s.access_key,
                slots=k.occupied_slots,
            )
            for s in self._live
            for k in s.kernels
            if k.agent in agent_ids and k.agent is not None and k.status in HOLDING
        ]

    async def search(self, query: model.SessionQuery) -> Page[model.Session]:
        sessions = [
            s
            for s in self._memory.sessions.values()
            if (query.statuses is None or s.status in query.statuses)
            and query.access_key in (None, s.access_key)
            and query.domain_name in (None, s.domain_name)
            and query.group_id in (None, str(s.group_id))
        ]
        return select(sorted(sessions, key=lambda s: str(s.id)), query)

    async def dependents(self, session_id: SessionId) -> list[model.Session]:
        return [s for s in self._live if session_id in s.dependencies]

    async def count_live(self, access_keys: Collection[AccessKey] | None = None) -> Mapping[AccessKey, int]:
        counts: dict[AccessKey, int] = {}
        for session in self._live:
            if access_keys is None or session.access_key in access_keys:
                counts[session.access_key] = counts.get(session.access_key, 0) + 1
        return counts

    async def occupied(
        self,
        *,
        access_key: AccessKey | None = None,
        group_id: GroupId | None = None,
        domain_name: DomainName | None = None,
    ) -> ResourceSlot:
        return sum(
            (
                s.occupying_slots
                for s in self._live
                if access_key in (None, s.access_key)
                and group_id in (None, s.group_id)
                and domain_name in (None, s.domain_name)
            ),
            ResourceSlot(),
        )

    async def bump(self, queries: Mapping[SessionId, int], stats: Mapping[KernelId, Mapping[str, Any]]) -> None:
        check_fence()
        for session in list(self._memory.sessions.values()):
            kernels = tuple(replace(k, last_stat=stats[k.id]) if k.id in stats else k for k in session.kernels)
            count = session.num_queries + queries.get(session.id, 0)
            self._memory.sessions[session.id] = replace(session, kernels=kernels, num_queries=count)

    async def put_log(self, kernel_id: KernelId, tail: bytes) -> None:
        check_fence()
        self._memory.logs[kernel_id] = tail

    async def get_log(self, kernel_id: KernelId) -> bytes | None:
        return self._memory.logs.get(kernel_id)

    async def acked(self, agent_id: AgentId, epoch: int) -> int:
        acked_epoch, seq = self._memory.acks.get(agent_id, (0, 0))
        return seq if acked_epoch == epoch else 0

    async def audit(self) -> model.SlotAudit:
        drift: dict[AgentId, tuple[ResourceSlot, ResourceSlot]] = {}
        for agent in self._memory.agents.values():
            total = sum((h.slots for h in await self.held([agent.id])), ResourceSlot())
            if total != agent.occupied_slots:
                drift[agent.id] = agent.occupied_slots, total
        return model.SlotAudit(drift=drift)

    async def purge(self, *, before: datetime) -> int:
        check_fence()
        m = self._memory
        stored = len(m.events)
        m.events = [e for e in m.events if e.at >= before]
        for session in m.sessions.values():
            for kernel in session.kernels:
                if kernel.terminated_at is not None and kernel.terminated_at < before:
                    m.logs.pop(kernel.id, None)
        return stored - len(m.events)

    async def events_after(self, after_id: int, *, limit: int = 1000) -> list[Event]:
        return [e for e in self._memory.events if e.id > after_id][:limit]

    async def last_event_id(self) -> int:
        return self._memory.events[-1].id if self._memory.events else 0

    async def due_callbacks(self, now: datetime, *, limit: int) -> list[Webhook]:
        first: dict[SessionId, Webhook] = {}
        for webhook in self._memory.callbacks.values():
            first.setdefault(webhook.session_id, webhook)
        return sorted((c for c in first.values() if c.due_at <= now), key=lambda c: (c.due_at, c.id))[:limit]

    async def put_off_callback(self, callback_id: int, *, attempts: int, due_at: datetime) -> None:
        check_fence()
        webhook = self._memory.callbacks.get(callback_id)
        if webhook is not None:
            self._memory.callbacks[callback_id] = replace(webhook, attempts=attempts, due_at=due_at)

    async def drop_callback(self, callback_id: int) -> None:
        check_fence()
        self._memory.callbacks.pop(callback_id, None)


def _with_side_fields(change: Change, stored: model.Session) -> model.Session:
    """Returns the new session; what ``bump`` wrote meanwhile stays unless the change itself touches it."""
    stats = {k.id: k.last_stat for k in stored.kernels}
    before = {k.id: k.last_stat for k in change.old.kernels}
    kernels = tuple(
        replace(k, last_stat=stats[k.id]) if k.last_stat == before[k.id] and stats[k.id] != k.last_stat else k
        for k in change.new.kernels
    )
    return replace(change.new, kernels=kernels, num_queries=stored.num_queries, version=stored.version + 1)
