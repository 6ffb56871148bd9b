"""Sessions in SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Row, String, delete, func, insert, or_, select, update
from sqlalchemy import cast as sql_cast
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from ai.backend.common.errors import InsufficientResource, SessionAlreadyExists, StaleVersion
from ai.backend.common.ids import AccessKey, AgentId, KernelId, SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import FINAL_SESSION_STATUSES, SessionStatus
from ai.backend.infra.database import Database
from ai.backend.manager.adapters.db import tables as t
from ai.backend.manager.adapters.db.filters import compile_filter, compile_order
from ai.backend.manager.adapters.db.outbox import acknowledge, insert_events, read_events
from ai.backend.manager.model.changes import Change, ObservationAck, slot_deltas
from ai.backend.manager.model.journal import Event, EventDraft
from ai.backend.manager.model.query import Page, SessionQuery
from ai.backend.manager.model.session import HOLDING_KERNEL_STATUSES, Holding, Kernel, Session, SlotAudit

_SESSION_FIELDS = tuple(f.name for f in fields(Session) if f.name != "kernels")
_KERNEL_FIELDS = tuple(f.name for f in fields(Kernel) if f.name != "live_stat")
_LIVE = t.sessions.c.status.not_in(FINAL_SESSION_STATUSES)
_HIDDEN = frozenset({"environ", "bootstrap_script", "callback_url", "version"})
_CHUNK = 500


def _kernel_row(kernel: Kernel) -> dict[str, Any]:
    return {name: getattr(kernel, name) for name in _KERNEL_FIELDS}


def _session_row(session: Session) -> dict[str, Any]:
    return {name: getattr(session, name) for name in _SESSION_FIELDS}


def _difference(names: tuple[str, ...], old: object, new: object) -> dict[str, Any]:
    return {
        name: after
        for name in names
        if (after := getattr(new, name)) is not (before := getattr(old, name)) and after != before
    }


async def _load(s: AsyncSession, rows: Sequence[Row[Any]]) -> list[Session]:
    """Sessions with their kernels, in the order of ``rows``."""
    kernels: dict[UUID, list[Kernel]] = {}
    ids = [row.id for row in rows]
    for start in range(0, len(ids), _CHUNK):
        found = await s.execute(
            select(t.kernels)
            .where(t.kernels.c.session_id.in_(ids[start : start + _CHUNK]))
            .order_by(t.kernels.c.local_rank)
        )
        for row in found:
            kernels.setdefault(row.session_id, []).append(Kernel(**row._mapping))
    return [Session(**row._mapping, kernels=tuple(kernels[row.id])) for row in rows]


def _existing(error: IntegrityError, session_id: UUID | None) -> SessionAlreadyExists:
    data = {"existingSessionId": str(session_id)} if session_id is not None else {}
    return SessionAlreadyExists(data=data)


class SqlSessionStore:
    """Implements :class:`ai.backend.manager.ports.stores.SessionStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def insert(self, session: Session, *, events: Sequence[EventDraft], client_token: str | None = None) -> None:
        try:
            async with self._db.write() as s:
                await s.execute(insert(t.sessions), _session_row(session))
                await s.execute(insert(t.kernels), [_kernel_row(k) for k in session.kernels])
                if session.dependencies:
                    links = [{"session_id": session.id, "depends_on": d} for d in session.dependencies]
                    await s.execute(insert(t.session_dependencies), links)
                if client_token is not None:
                    token = {"access_key": session.access_key, "token": client_token, "session_id": session.id}
                    await s.execute(insert(t.idempotency_tokens), {**token, "created_at": session.created_at})
                await insert_events(s, session, events, session.created_at)
        except IntegrityError as e:
            existing = await self.by_token(session.access_key, client_token) if client_token else None
            if existing is None:
                named = await self.find_live(session.access_key, session.name)
                existing = next((x for x in named if x.name == session.name), None)
            if existing is None:
                raise
            raise _existing(e, existing.id) from None

    async def save(self, changes: Sequence[Change], *, ack: ObservationAck | None = None) -> None:
        try:
            async with self._db.write() as s:
                for change in changes:
                    await self._write(s, change)
                await self._move_slots(s, slot_deltas(changes))
                for change in changes:
                    if change.events:
                        await insert_events(s, change.new, change.events, change.new.status_changed)
                if ack is not None:
                    await acknowledge(s, ack)
        except IntegrityError as e:
            named = [await self.newest_named(c.new.access_key, c.new.name) for c in changes if c.old.name != c.new.name]
            raise _existing(e, next((x.id for x in named if x is not None), None)) from None

    async def _write(self, s: AsyncSession, change: Change) -> None:
        old, new = change.old, replace(change.new, version=change.old.version + 1)
        done = await s.execute(
            update(t.sessions)
            .where(t.sessions.c.id == old.id, t.sessions.c.version == old.version)
            .values(_difference(_SESSION_FIELDS, old, new))
        )
        if done.rowcount != 1:  # type: ignore[attr-defined]  # an UPDATE gives a CursorResult
            raise StaleVersion(f"session {old.id} is not at version {old.version} any more")
        for before, after in zip(old.kernels, new.kernels, strict=True):
            values = _difference(_KERNEL_FIELDS, before, after) if after is not before else {}
            if values:
                await s.execute(update(t.kernels).where(t.kernels.c.id == after.id).values(values))

    @staticmethod
    async def _move_slots(s: AsyncSession, deltas: Mapping[AgentId, ResourceSlot]) -> None:
        for agent_id, delta in sorted(deltas.items()):
            c = t.agents.c
            found = await s.execute(
                select(c.available_slots, c.occupied_slots).where(c.id == agent_id).with_for_update()
            )
            row = found.one_or_none()
            if row is None:
                continue
            occupied = (row.occupied_slots + delta).nonzero()
            grows = {name: amount for name, amount in delta.items() if amount > 0}
            if any(occupied[name] > row.available_slots[name] for name in grows):
                raise InsufficientResource(f"agent {agent_id} has not that much free")
            await s.execute(update(t.agents).where(c.id == agent_id).values(occupied_slots=occupied))

    async def _select(self, *where: ColumnElement[bool], order: Any = None, limit: int | None = None) -> list[Session]:
        query = select(t.sessions).where(*where)
        query = query.order_by(*(order if order is not None else (t.sessions.c.created_at, t.sessions.c.id)))
        async with self._db.read() as s:
            rows = (await s.execute(query.limit(limit) if limit is not None else query)).all()
            return await _load(s, rows)

    async def get(self, session_id: SessionId) -> Session | None:
        found = await self._select(t.sessions.c.id == session_id)
        return found[0] if found else None

    async def get_many(self, ids: Iterable[SessionId]) -> list[Session]:
        wanted = list(dict.fromkeys(ids))
        found: list[Session] = []
        for start in range(0, len(wanted), _CHUNK):
            found += await self._select(t.sessions.c.id.in_(wanted[start : start + _CHUNK]))
        return found

    async def by_token(self, access_key: AccessKey, client_token: str) -> Session | None:
        c = t.idempotency_tokens.c
        wanted = select(c.session_id).where(c.access_key == access_key, c.token == client_token)
        found = await self._select(t.sessions.c.id.in_(wanted))
        return found[0] if found else None

    async def find_live(self, access_key: AccessKey | None, ref: str, *, limit: int = 10) -> list[Session]:
        c = t.sessions.c
        scope = [_LIVE] if access_key is None else [_LIVE, c.access_key == access_key]
        as_text = sql_cast(c.id, String)
        exact = await self._select(*scope, or_(c.name == ref, as_text == ref.lower()), limit=limit)
        if exact or not ref:
            return exact
        starts = or_(c.name.startswith(ref, autoescape=True), as_text.startswith(ref.lower(), autoescape=True))
        return await self._select(*scope, starts, limit=limit)

    async def newest_named(self, access_key: AccessKey, name: str) -> Session | None:
        c = t.sessions.c
        order = (c.created_at.desc(), c.id)
        found = await self._select(c.access_key == access_key, c.name == name, order=order, limit=1)
        return found[0] if found else None

    async def by_status(self, statuses: Collection[SessionStatus]) -> list[Session]:
        return await self._select(t.sessions.c.status.in_(list(statuses)))

    async def of_kernels(self, kernel_ids: Collection[KernelId]) -> list[Session]:
        owners = select(t.kernels.c.session_id).where(t.kernels.c.id.in_(list(kernel_ids)))
        return await self._select(t.sessions.c.id.in_(owners))

    async def on_agent(self, agent_id: AgentId) -> list[Session]:
        owners = select(t.kernels.c.session_id).where(t.kernels.c.agent == agent_id)
        return await self._select(_LIVE, t.sessions.c.id.in_(owners))

    async def held(self, agent_ids: Collection[AgentId]) -> list[Holding]:
        c = t.kernels.c
        query = (
            select(c.id, c.agent, t.sessions.c.access_key, c.occupied_slots, c.devices)
            .join(t.sessions, t.sessions.c.id == c.session_id)
            .where(c.agent.in_(list(agent_ids)), c.status.in_(HOLDING_KERNEL_STATUSES))
        )
        async with self._db.read() as s:
            return [
                Holding(kernel_id=k, agent=a, access_key=owner, slots=slots, devices=devices)
                for k, a, owner, slots, devices in await s.execute(query)
            ]

    async def search(self, query: SessionQuery) -> Page[Session]:
        c = t.sessions.c
        where = compile_filter(t.sessions, query.filter, hidden=_HIDDEN)
        if query.statuses is not None:
            where.append(c.status.in_(query.statuses))
        if query.access_key is not None:
            where.append(c.access_key == query.access_key)
        if query.domain_name is not None:
            where.append(c.domain_name == query.domain_name)
        if query.group_id is not None:
            where.append(c.group_id == query.group_id)
        order = compile_order(t.sessions, query.order, (c.created_at.desc(), c.id.asc()), hidden=_HIDDEN)
        async with self._db.read() as s:
            total = (await s.execute(select(func.count()).select_from(t.sessions).where(*where))).scalar_one()
            page = select(t.sessions).where(*where).order_by(*order).limit(query.limit).offset(query.offset)
            return Page(items=await _load(s, (await s.execute(page)).all()), total_count=total)

    async def dependents(self, session_id: SessionId) -> list[Session]:
        c = t.session_dependencies.c
        return await self._select(_LIVE, t.sessions.c.id.in_(select(c.session_id).where(c.depends_on == session_id)))

    async def count_live(self, access_keys: Collection[AccessKey] | None = None) -> Mapping[AccessKey, int]:
        c = t.sessions.c
        query = select(c.access_key, func.count()).where(_LIVE).group_by(c.access_key)
        if access_keys is not None:
            query = query.where(c.access_key.in_(list(access_keys)))
        async with self._db.read() as s:
            return {AccessKey(key): count for key, count in await s.execute(query)}

    async def bump(self, queries: Mapping[SessionId, int], stats: Mapping[KernelId, Mapping[str, Any]]) -> None:
        c = t.sessions.c
        async with self._db.write() as s:
            for session_id, count in queries.items():
                await s.execute(update(t.sessions).where(c.id == session_id).values(num_queries=c.num_queries + count))
            for kernel_id, stat in stats.items():
                await s.execute(update(t.kernels).where(t.kernels.c.id == kernel_id).values(last_stat=dict(stat)))

    async def put_log(self, kernel_id: KernelId, tail: bytes) -> None:
        async with self._db.write() as s:
            await s.execute(delete(t.kernel_logs).where(t.kernel_logs.c.kernel_id == kernel_id))
            await s.execute(insert(t.kernel_logs), {"kernel_id": kernel_id, "tail": tail})

    async def get_log(self, kernel_id: KernelId) -> bytes | None:
        async with self._db.read() as s:
            found = await s.execute(select(t.kernel_logs.c.tail).where(t.kernel_logs.c.kernel_id == kernel_id))
            return found.scalar_one_or_none()

    async def acked(self, agent_id: AgentId, epoch: int) -> int:
        c = t.agent_acks.c
        async with self._db.read() as s:
            found = await s.execute(select(c.seq).where(c.agent_id == agent_id, c.epoch == epoch))
            return found.scalar_one_or_none() or 0

    async def audit(self) -> SlotAudit:
        c = t.kernels.c
        async with self._db.read() as s:
            agents = (await s.execute(select(t.agents.c.id, t.agents.c.occupied_slots))).all()
            held = await s.execute(
                select(c.agent, c.occupied_slots).where(c.agent.is_not(None), c.status.in_(HOLDING_KERNEL_STATUSES))
            )
            sums: dict[str, ResourceSlot] = {}
            for agent_id, slots in held:
                sums[str(agent_id)] = sums.get(str(agent_id), ResourceSlot()) + slots
            lost = select(c.id).where(c.session_id.not_in(select(t.sessions.c.id)))
            orphans = (await s.execute(lost)).scalars().all()
        drift = {
            AgentId(a): (recorded, sums.get(a, ResourceSlot()))
            for a, recorded in agents
            if recorded != sums.get(a, ResourceSlot())
        }
        return SlotAudit(drift=drift, orphans=tuple(KernelId(k) for k in orphans))

    async def purge(self, *, before: datetime, tokens_before: datetime) -> int:
        async with self._db.write() as s:
            gone = await s.execute(delete(t.session_events).where(t.session_events.c.at < before))
            stale = select(t.kernels.c.id).where(t.kernels.c.terminated_at < before)
            await s.execute(delete(t.kernel_logs).where(t.kernel_logs.c.kernel_id.in_(stale)))
            await s.execute(delete(t.idempotency_tokens).where(t.idempotency_tokens.c.created_at < tokens_before))
            return int(gone.rowcount)  # type: ignore[attr-defined]  # a DELETE gives a CursorResult

    async def events_after(self, after_id: int, *, limit: int = 1000) -> list[Event]:
        async with self._db.read() as s:
            return await read_events(s, after_id, limit)

    async def last_event_id(self) -> int:
        async with self._db.read() as s:
            return (await s.execute(select(func.max(t.session_events.c.id)))).scalar_one_or_none() or 0
