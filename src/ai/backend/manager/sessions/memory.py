"""Stores sessions in memory, with the semantics of the SQL store and in an order that is repeatable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from ai.backend.common.errors import InsufficientResource, SessionAlreadyExists, StaleVersion
from ai.backend.common.ids import AccessKey, AgentId, DomainName, GroupId, KernelId, SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SessionStatus
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.kernel import HOLDING
from ai.backend.manager.agents.model import Agent, KernelOccupancy
from ai.backend.manager.leadership.memory import check_fence
from ai.backend.manager.query.memory import select
from ai.backend.manager.query.model import Page
from ai.backend.manager.sessions import model
from ai.backend.manager.sessions.changes import (
    Change,
    Event,
    EventDraft,
    ObservationAck,
    Webhook,
    claim_changes,
    event_rows,
    slot_deltas,
    webhook_rows,
)
from ai.backend.manager.sessions.claims.memory import MemoryClaims
from ai.backend.manager.sessions.claims.model import Claim, as_occupancy, no_such_claim, without_claim_devices
from ai.backend.manager.sessions.store import UNLIMITED


@dataclass
class Memory:
    """The data that the in-memory stores of sessions and agents share."""

    sessions: dict[SessionId, model.Session] = field(default_factory=dict)
    agents: dict[AgentId, Agent] = field(default_factory=dict)
    claims: dict[UUID, Claim] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    event_id: int = 0
    callbacks: dict[int, Webhook] = field(default_factory=dict)
    callback_id: int = 0
    logs: dict[KernelId, bytes] = field(default_factory=dict)
    acks: dict[AgentId, ObservationAck] = field(default_factory=dict)


_OCCUPANCY_FIELDS = ("session_id", "agent", "status", "status_changed", "attempt", "devices")


def _order_of_age(session: model.Session) -> tuple[datetime, SessionId]:
    return session.created_at, session.id


class MemorySessionStore(MemoryClaims):
    """Implements :class:`ai.backend.manager.sessions.store.SessionStore`."""

    _memory: Memory

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory or Memory()

    @property
    def _live(self) -> list[model.Session]:
        return sorted(
            (session for session in self._memory.sessions.values() if not session.status.is_final), key=_order_of_age
        )

    def _live_by_name(
        self, access_key: AccessKey, name: str, *, excluded_id: SessionId | None = None
    ) -> model.Session | None:
        return next(
            (
                session
                for session in self._live
                if (session.access_key, session.name) == (access_key, name) and session.id != excluded_id
            ),
            None,
        )

    async def live_named(self, access_key: AccessKey, name: str) -> model.Session | None:
        return self._live_by_name(access_key, name)

    async def insert(
        self, session: model.Session, *, events: Sequence[EventDraft], limits: model.OwnerLimits = UNLIMITED
    ) -> None:
        memory = self._memory
        check_fence()
        existing_session = memory.sessions.get(session.id) or self._live_by_name(session.access_key, session.name)
        if existing_session is not None:
            raise SessionAlreadyExists(data={"existingSessionId": str(existing_session.id)})
        owned_sessions = [
            owned_session for owned_session in self._live if owned_session.access_key == session.access_key
        ]
        if limits.max_live is not None and len(owned_sessions) >= limits.max_live:
            raise model.too_many_sessions(limits.max_live)
        pending_sessions = [
            *(owned_session for owned_session in owned_sessions if owned_session.status is SessionStatus.PENDING),
            session,
        ]
        pending_slots = sum(
            (kernel.requested_slots for session in pending_sessions for kernel in session.kernels), ResourceSlot()
        )
        limits.check_pending(len(pending_sessions), pending_slots)
        if session.claim_id is not None:
            claim = memory.claims.get(session.claim_id)
            if claim is None or claim.is_deleting:
                raise no_such_claim()
        memory.sessions[session.id] = session
        self._add_events(session, events, session.created_at)

    async def save(self, changes: Sequence[Change], *, ack: ObservationAck | None = None) -> None:
        memory = self._memory
        check_fence()
        for change in changes:
            stored_session = memory.sessions.get(change.old.id)
            if stored_session is None or stored_session.version != change.old.version:
                raise StaleVersion(f"session {change.old.id} is not at version {change.old.version} any more")
            if not change.new.status.is_final:
                namesake = self._live_by_name(change.new.access_key, change.new.name, excluded_id=change.new.id)
                if namesake is not None:
                    raise SessionAlreadyExists(data={"existingSessionId": str(namesake.id)})
        self._check_vnis(changes)
        self.check_claims(claim_changes(changes))
        moved_agents = self._agents_with_deltas(slot_deltas(changes))
        for change in changes:
            stored_session = memory.sessions[change.old.id]
            memory.sessions[stored_session.id] = _with_side_fields(change, stored_session)
            self._add_events(change.new, change.events, change.new.status_changed)
        self.put_claims(claim_changes(changes))
        memory.agents.update(moved_agents)
        if ack is not None:
            memory.acks[ack.agent_id] = ack

    def _check_vnis(self, changes: Sequence[Change]) -> None:
        vni_of_session = {
            **{session_id: session.vni for session_id, session in self._memory.sessions.items()},
            **{change.new.id: change.new.vni for change in changes},
        }
        vnis = [vni for vni in vni_of_session.values() if vni is not None]
        if len(vnis) != len(set(vnis)):
            raise StaleVersion("another session has the number of this one's network")

    async def workloads(self) -> list[model.KernelWorkload]:
        kernels = sorted((kernel for session in self._live for kernel in session.kernels), key=lambda k: str(k.id))
        return [
            model.KernelWorkload(
                session_id=kernel.session_id,
                kernel_id=kernel.id,
                agent=kernel.agent,
                container_id=kernel.container_id,
                runtime_class=self._memory.sessions[kernel.session_id].runtime_class,
            )
            for kernel in kernels
            if kernel.agent is not None and kernel.container_id is not None and kernel.status in HOLDING
        ]

    async def networks(self) -> list[tuple[int, model.SessionNetwork]]:
        return [
            (session.vni, model.network_to_keep(session.network, session.status))
            for session in self._live
            if session.vni is not None and session.network is not None
        ]

    def _agents_with_deltas(self, deltas: Mapping[AgentId, ResourceSlot]) -> dict[AgentId, Agent]:
        moved_agents: dict[AgentId, Agent] = {}
        for agent_id, delta in deltas.items():
            agent = self._memory.agents.get(agent_id)
            if agent is None:
                continue
            occupied_slots = (agent.occupied_slots + delta).nonzero()
            growing_slots = [name for name, amount in delta.items() if amount > 0]
            if any(occupied_slots[name] > agent.capacity[name] for name in growing_slots):
                raise InsufficientResource(f"agent {agent_id} does not have as much free")
            moved_agents[agent_id] = replace(agent, occupied_slots=occupied_slots)
        return moved_agents

    def _add_events(self, session: model.Session, drafts: Sequence[EventDraft], happened_at: datetime) -> None:
        memory = self._memory
        for row in webhook_rows(session, drafts, happened_at):
            memory.callback_id += 1
            memory.callbacks[memory.callback_id] = Webhook(id=memory.callback_id, **row)
        for row in event_rows(session, drafts, happened_at):
            memory.event_id += 1
            memory.events.append(Event(id=memory.event_id, **row))

    async def get(self, session_id: SessionId) -> model.Session | None:
        return self._memory.sessions.get(session_id)

    async def get_many(self, ids: Iterable[SessionId]) -> list[model.Session]:
        sessions = (self._memory.sessions.get(session_id) for session_id in dict.fromkeys(ids))
        return sorted((session for session in sessions if session is not None), key=_order_of_age)

    async def find_live(self, access_key: AccessKey | None, ref: str, *, limit: int = 10) -> list[model.Session]:
        owned_sessions = [session for session in self._live if access_key is None or session.access_key == access_key]
        exact_matches = [session for session in owned_sessions if ref == session.name or ref.lower() == str(session.id)]
        if exact_matches or not ref:
            return exact_matches[:limit]
        return [
            session
            for session in owned_sessions
            if session.name.startswith(ref) or str(session.id).startswith(ref.lower())
        ][:limit]

    async def newest_named(self, access_key: AccessKey, name: str) -> model.Session | None:
        sessions = [
            named_session
            for named_session in self._memory.sessions.values()
            if (named_session.access_key, named_session.name) == (access_key, name)
        ]
        return max(sessions, key=lambda session: session.created_at, default=None)

    async def by_status(self, statuses: Collection[SessionStatus]) -> list[model.Session]:
        return sorted(
            (session for session in self._memory.sessions.values() if session.status in statuses), key=_order_of_age
        )

    async def refreshed(
        self, statuses: Collection[SessionStatus], find_cached: Callable[[SessionId], model.Session | None]
    ) -> list[model.Session]:
        return await self.by_status(statuses)

    async def of_kernels(self, kernel_ids: Collection[KernelId]) -> list[model.Session]:
        ids = set(kernel_ids)
        return sorted(
            (session for session in self._memory.sessions.values() if ids & {kernel.id for kernel in session.kernels}),
            key=_order_of_age,
        )

    async def on_agent(self, agent_id: AgentId) -> list[model.Session]:
        return [session for session in self._live if any(kernel.agent == agent_id for kernel in session.kernels)]

    async def held(self, agent_ids: Collection[AgentId]) -> list[KernelOccupancy]:
        kernels = [
            KernelOccupancy(
                **{field_name: getattr(kernel, field_name) for field_name in _OCCUPANCY_FIELDS},
                kernel_id=kernel.id,
                access_key=session.access_key,
                slots=kernel.occupied_slots,
                device_requests=session.device_requests,
                claim_id=session.claim_id,
            )
            for session in self._live
            for kernel in session.kernels
            if kernel.agent in agent_ids and kernel.agent is not None and kernel.status in HOLDING
        ]
        claims = [claim for claim in self._memory.claims.values() if claim.agent in agent_ids]
        return [*map(without_claim_devices, kernels), *map(as_occupancy, claims)]

    async def search(self, query: model.SessionQuery) -> Page[model.Session]:
        sessions = [
            session
            for session in self._memory.sessions.values()
            if (query.statuses is None or session.status in query.statuses)
            and query.access_key in (None, session.access_key)
            and query.domain_name in (None, session.domain_name)
            and query.group_id in (None, str(session.group_id))
        ]
        return select(sorted(sessions, key=lambda conn: str(conn.id)), query)

    async def count_by_status(self, query: model.SessionQuery) -> Mapping[str, int]:
        page = await self.search(replace(query, statuses=None, offset=0, limit=10_000))
        return Counter(session.status.value for session in page.items)

    async def dependents(self, session_id: SessionId) -> list[model.Session]:
        return [session for session in self._live if session_id in session.dependencies]

    async def live_statuses(self) -> Mapping[SessionStatus, tuple[int, datetime]]:
        statuses: dict[SessionStatus, tuple[int, datetime]] = {}
        for session in self._live:
            count, oldest_since = statuses.get(session.status, (0, session.starts_at or session.status_changed))
            statuses[session.status] = count + 1, min(oldest_since, session.starts_at or session.status_changed)
        return statuses

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
                session.occupying_slots
                for session in self._live
                if access_key in (None, session.access_key)
                and group_id in (None, session.group_id)
                and domain_name in (None, session.domain_name)
            ),
            sum(
                (
                    claim.occupied_slots
                    for claim in self._memory.claims.values()
                    if access_key in (None, claim.access_key)
                    and group_id in (None, claim.group_id)
                    and domain_name in (None, claim.domain_name)
                ),
                ResourceSlot(),
            ),
        )

    async def bump(self, queries: Mapping[SessionId, int], stats: Mapping[KernelId, Mapping[str, Any]]) -> None:
        check_fence()
        for session in list(self._memory.sessions.values()):
            kernels = tuple(
                replace(kernel, last_stat=stats[kernel.id]) if kernel.id in stats else kernel
                for kernel in session.kernels
            )
            query_count = session.num_queries + queries.get(session.id, 0)
            self._memory.sessions[session.id] = replace(session, kernels=kernels, num_queries=query_count)

    async def put_log(self, kernel_id: KernelId, tail: bytes) -> None:
        check_fence()
        self._memory.logs[kernel_id] = tail

    async def get_log(self, kernel_id: KernelId) -> bytes | None:
        return self._memory.logs.get(kernel_id)

    async def acked(self, agent_id: AgentId) -> ObservationAck | None:
        return self._memory.acks.get(agent_id)

    async def audit(self) -> model.SlotAudit:
        drift: dict[AgentId, tuple[ResourceSlot, ResourceSlot]] = {}
        for agent in self._memory.agents.values():
            counted_slots = sum((occupancy.slots for occupancy in await self.held([agent.id])), ResourceSlot())
            if counted_slots != agent.occupied_slots:
                drift[agent.id] = agent.occupied_slots, counted_slots
        return model.SlotAudit(drift=drift)

    async def purge(self, *, before: datetime) -> int:
        check_fence()
        memory = self._memory
        event_count = len(memory.events)
        memory.events = [event for event in memory.events if event.at >= before]
        for session in memory.sessions.values():
            for kernel in session.kernels:
                if kernel.terminated_at is not None and kernel.terminated_at < before:
                    memory.logs.pop(kernel.id, None)
        return event_count - len(memory.events)

    async def events_after(self, after_id: int, *, limit: int = 1000) -> list[Event]:
        return [event for event in self._memory.events if event.id > after_id][:limit]

    async def events_of(self, session_id: SessionId, *, limit: int) -> list[Event]:
        return [event for event in self._memory.events if event.session_id == session_id][-limit:]

    async def last_event_id(self) -> int:
        return self._memory.events[-1].id if self._memory.events else 0

    async def due_callbacks(self, now: datetime, *, limit: int) -> list[Webhook]:
        first_webhooks: dict[SessionId, Webhook] = {}
        for webhook in self._memory.callbacks.values():
            first_webhooks.setdefault(webhook.session_id, webhook)
        return sorted(
            (webhook for webhook in first_webhooks.values() if webhook.due_at <= now),
            key=lambda webhook: (webhook.due_at, webhook.id),
        )[:limit]

    async def put_off_callback(self, callback_id: int, *, attempts: int, due_at: datetime) -> None:
        check_fence()
        webhook = self._memory.callbacks.get(callback_id)
        if webhook is not None:
            self._memory.callbacks[callback_id] = replace(webhook, attempts=attempts, due_at=due_at)

    async def drop_callback(self, callback_id: int) -> None:
        check_fence()
        self._memory.callbacks.pop(callback_id, None)


def _with_side_fields(change: Change, stored_session: model.Session) -> model.Session:
    """Returns the changed session with the query count and kernel statistics of the stored session.

    Statistics that the change has set are kept.
    """
    stats = {kernel.id: kernel.last_stat for kernel in stored_session.kernels}
    old_stats = {kernel.id: kernel.last_stat for kernel in change.old.kernels}
    kernels = tuple(
        replace(kernel, last_stat=stats[kernel.id])
        if kernel.last_stat == old_stats[kernel.id] and stats[kernel.id] != kernel.last_stat
        else kernel
        for kernel in change.new.kernels
    )
    return replace(
        change.new, kernels=kernels, num_queries=stored_session.num_queries, version=stored_session.version + 1
    )
