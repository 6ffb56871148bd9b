"""Sessions in SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from operator import attrgetter
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Row, String, TextClause, func, insert, or_, select, update
from sqlalchemy import cast as sql_cast
from sqlalchemy.exc import IntegrityError

from ai.backend.common.errors import SessionAlreadyExists, StaleVersion, Unavailable
from ai.backend.common.ids import AccessKey, AgentId, DomainName, GroupId, KernelId, SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SessionStatus
from ai.backend.core.lifecycle.kernel import HOLDING
from ai.backend.infra.database import Database
from ai.backend.infra.database.batching import MAX_CHUNK_ITEMS, BatchWriter, chunks
from ai.backend.manager.agents import tables as agents_tables
from ai.backend.manager.agents.model import KernelOccupancy
from ai.backend.manager.folders.model import FolderMount
from ai.backend.manager.identity import tables as identity_tables
from ai.backend.manager.query.model import Page
from ai.backend.manager.query.sql import compile_filter, compile_order
from ai.backend.manager.sessions import model, tables
from ai.backend.manager.sessions.changes import Change, EventDraft, ObservationAck, slot_deltas
from ai.backend.manager.sessions.sql_bulk import check_versions, move_slots, update_many
from ai.backend.manager.sessions.sql_outbox import SqlOutbox, acknowledge, insert_events
from ai.backend.manager.sessions.store import UNLIMITED

_SESSION_FIELDS = tuple(f.name for f in fields(model.Session) if f.name not in ("kernels", "story"))
_KERNEL_FIELDS = tuple(f.name for f in fields(model.Kernel) if f.name != "live_stat")
_session_values, _kernel_values = attrgetter(*_SESSION_FIELDS), attrgetter(*_KERNEL_FIELDS)
_SESSION_COLUMNS, _KERNEL_COLUMNS = tables.sessions.c.keys(), tables.kernels.c.keys()
_HIDDEN = frozenset({"environ", "network", "bootstrap_script", "callback_url", "version"})


def _kernel_row(kernel: model.Kernel) -> dict[str, Any]:
    return dict(zip(_KERNEL_FIELDS, _kernel_values(kernel), strict=True))


def _session_row(session: model.Session) -> dict[str, Any]:
    return dict(zip(_SESSION_FIELDS, _session_values(session), strict=True))


def _difference(
    names: tuple[str, ...], values: Callable[[Any], tuple[Any, ...]], old: object, new: object
) -> dict[str, Any]:
    columns = zip(names, values(old), values(new), strict=True)
    return {name: after for name, before, after in columns if after is not before and after != before}


def _load(s: Connection, rows: Sequence[Row[Any]]) -> list[model.Session]:
    """Returns sessions with their kernels, in the order of ``rows``."""
    kernels: dict[UUID, list[model.Kernel]] = {}
    for ids in chunks([row.id for row in rows]):
        query = select(tables.kernels).where(tables.kernels.c.session_id.in_(ids)).order_by(tables.kernels.c.local_rank)
        for row in s.execute(query):
            kernels.setdefault(row.session_id, []).append(model.Kernel(**dict(zip(_KERNEL_COLUMNS, row, strict=True))))
    return [
        model.Session(**dict(zip(_SESSION_COLUMNS, row, strict=True)), kernels=tuple(kernels[row.id])) for row in rows
    ]


def _already_exists(error: IntegrityError, session_id: UUID | None) -> SessionAlreadyExists:
    data = {"existingSessionId": str(session_id)} if session_id is not None else {}
    return SessionAlreadyExists(data=data)


def _equal(query: model.SessionQuery, *columns: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    """Returns the conditions of those columns that the query gives a value."""
    values = ((column, getattr(query, str(column.key))) for column in columns)
    return [column == value for column, value in values if value is not None]


InsertStep: TypeAlias = Callable[[Connection, SessionId, Sequence[FolderMount], datetime], None]
"""Links the mounts of a new session: connection, session, mounts, time of creation."""


@dataclass(frozen=True, slots=True)
class _NewSession:
    session: model.Session
    events: Sequence[EventDraft]
    limits: model.OwnerLimits


class SqlSessionStore(SqlOutbox):
    """Implements :class:`ai.backend.manager.sessions.store.SessionStore`. The ``insert_steps`` run for each new session
    in the transaction that inserts it; other features link what it mounts."""

    def __init__(self, database: Database, insert_steps: Sequence[InsertStep] = ()) -> None:
        super().__init__(database)
        self._insert_steps = insert_steps
        # Simultaneous creations share their statements, because each statement of PostgreSQL costs a round trip.
        self._inserts = BatchWriter(self._insert_batch, max_values=MAX_CHUNK_ITEMS)

    async def insert(
        self, session: model.Session, *, events: Sequence[EventDraft], limits: model.OwnerLimits = UNLIMITED
    ) -> None:
        new = _NewSession(session, events, limits)
        try:
            await self._inserts.put(new)
        except IntegrityError as e:
            existing = await self.get(session.id)
            if existing is None:
                named = await self.find_live(session.access_key, session.name)
                existing = next((x for x in named if x.name == session.name), None)
            if existing is None:
                raise
            raise _already_exists(e, existing.id) from None

    async def _insert_batch(self, batch: Sequence[_NewSession]) -> Sequence[BaseException | None]:
        """Inserts all sessions; if that fails, each in a transaction of its own, so that each gets its own error."""
        try:
            await self._insert_all(batch)
        except Unavailable:
            raise
        except Exception:
            if len(batch) == 1:
                raise
            inserts = (self._insert_all([new]) for new in batch)
            return await asyncio.gather(*inserts, return_exceptions=True)
        return [None] * len(batch)

    async def _insert_all(self, batch: Sequence[_NewSession]) -> None:
        def work(s: Connection) -> None:
            s.execute(insert(tables.sessions), [_session_row(new.session) for new in batch])
            s.execute(insert(tables.kernels), [_kernel_row(k) for new in batch for k in new.session.kernels])
            links = [{"session_id": new.session.id, "depends_on": d} for new in batch for d in new.session.dependencies]
            if links:
                s.execute(insert(tables.session_dependencies), links)
            for session in (new.session for new in batch):
                for step in self._insert_steps:
                    step(s, session.id, session.vfolder_mounts, session.created_at)
            insert_events(s, [(new.session, new.events, new.session.created_at) for new in batch])
            checked: list[tuple[AccessKey, model.OwnerLimits]] = []
            for new in batch:
                if (new.session.access_key, new.limits) not in checked:
                    checked.append((new.session.access_key, new.limits))
                    self._check_limits(s, new.session, new.limits)

        await self._db.run_write(work)

    @staticmethod
    def _check_limits(s: Connection, session: model.Session, limits: model.OwnerLimits) -> None:
        if limits.max_live is None and not limits.counts_pending:
            return
        key, c, owner = session.access_key, tables.sessions.c, identity_tables.keypairs.c.access_key
        # SQLite has one writer; elsewhere the lock makes creations of one key wait for each other.
        s.execute(select(owner).where(owner == key).with_for_update())
        if limits.max_live is not None:
            count = select(func.count()).select_from(tables.sessions).where(tables.LIVE, c.access_key == key)
            if s.execute(count).scalar_one() > limits.max_live:
                raise model.too_many_sessions(limits.max_live)
        if limits.counts_pending:
            k = tables.kernels.c
            where = (c.access_key == key, c.status == SessionStatus.PENDING)
            pending = select(c.id, k.requested_slots).join(tables.kernels, k.session_id == c.id).where(*where)
            rows = s.execute(pending).all()
            limits.check_pending(len({row[0] for row in rows}), sum((row[1] for row in rows), ResourceSlot()))

    async def save(self, changes: Sequence[Change], *, ack: ObservationAck | None = None) -> None:
        try:

            def work(s: Connection) -> None:
                self._write(s, changes)
                move_slots(s, slot_deltas(changes))
                insert_events(s, [(c.new, c.events, c.new.status_changed) for c in changes])
                if ack is not None:
                    acknowledge(s, ack)

            await self._db.run_write(work)
        except IntegrityError as e:
            if any(c.new.vni is not None and c.new.vni != c.old.vni for c in changes):
                raise StaleVersion("another session has the same network number") from e
            named = [await self.newest_named(c.new.access_key, c.new.name) for c in changes if c.old.name != c.new.name]
            raise _already_exists(e, next((x.id for x in named if x is not None), None)) from None

    @staticmethod
    def _write(s: Connection, changes: Sequence[Change]) -> None:
        """Updates rows; raise StaleVersion unless each session is at the version that its change was made from."""
        updates = [
            (c.old, {**_difference(_SESSION_FIELDS, _session_values, c.old, c.new), "version": c.old.version + 1})
            for c in changes
        ]
        if len(updates) == 1:
            old, values = updates[0]
            current = (tables.sessions.c.id == old.id, tables.sessions.c.version == old.version)
            if s.execute(update(tables.sessions).where(*current).values(values)).rowcount != 1:
                raise StaleVersion(f"session {old.id} is not at version {old.version} any more")
        elif updates:
            check_versions(s, {old.id: old.version for old, _ in updates})
            update_many(s, tables.sessions, [(old.id, values) for old, values in updates])
        kernels = [
            (after.id, values)
            for c in changes
            for before, after in zip(c.old.kernels, c.new.kernels, strict=True)
            if after is not before and (values := _difference(_KERNEL_FIELDS, _kernel_values, before, after))
        ]
        update_many(s, tables.kernels, kernels)

    async def _select(
        self, *where: ColumnElement[bool] | TextClause, order: Any = None, limit: int | None = None
    ) -> list[model.Session]:
        c = tables.sessions.c
        query = select(tables.sessions).where(*where).order_by(*(order or (c.created_at, c.id)))
        limited = query.limit(limit) if limit is not None else query
        return await self._db.run_read(lambda s: _load(s, s.execute(limited).all()))

    async def get(self, session_id: SessionId) -> model.Session | None:
        sessions = await self._select(tables.sessions.c.id == session_id)
        return sessions[0] if sessions else None

    async def get_many(self, ids: Iterable[SessionId]) -> list[model.Session]:
        sessions: list[model.Session] = []
        for part in chunks(dict.fromkeys(ids)):
            sessions += await self._select(tables.sessions.c.id.in_(part))
        return sessions

    async def find_live(self, access_key: AccessKey | None, ref: str, *, limit: int = 10) -> list[model.Session]:
        c = tables.sessions.c
        scope = [tables.LIVE] if access_key is None else [tables.LIVE, c.access_key == access_key]
        as_text = sql_cast(c.id, String)
        exact = await self._select(*scope, or_(c.name == ref, as_text == ref.lower()), limit=limit)
        if exact or not ref:
            return exact
        starts = or_(c.name.startswith(ref, autoescape=True), as_text.startswith(ref.lower(), autoescape=True))
        return await self._select(*scope, starts, limit=limit)

    async def newest_named(self, access_key: AccessKey, name: str) -> model.Session | None:
        c = tables.sessions.c
        order = (c.created_at.desc(), c.id)
        newest = await self._select(c.access_key == access_key, c.name == name, order=order, limit=1)
        return newest[0] if newest else None

    async def by_status(self, statuses: Collection[SessionStatus]) -> list[model.Session]:
        return await self._select(tables.sessions.c.status.in_(list(statuses)))

    async def refreshed(
        self, statuses: Collection[SessionStatus], cached: Callable[[SessionId], model.Session | None]
    ) -> list[model.Session]:
        c = tables.sessions.c
        query = select(c.id, c.version).where(c.status.in_(list(statuses))).order_by(c.created_at, c.id)

        def work(s: Connection) -> list[model.Session]:
            versions = {row[0]: row[1] for row in s.execute(query)}
            current = {i: copy for i, v in versions.items() if (copy := cached(i)) is not None and copy.version == v}
            for part in chunks([i for i in versions if i not in current]):
                rows = s.execute(select(tables.sessions).where(c.id.in_(part))).all()
                current.update((session.id, session) for session in _load(s, rows))
            return [current[i] for i in versions]

        return await self._db.run_read(work)

    async def of_kernels(self, kernel_ids: Collection[KernelId]) -> list[model.Session]:
        owners = select(tables.kernels.c.session_id).where(tables.kernels.c.id.in_(list(kernel_ids)))
        return await self._select(tables.sessions.c.id.in_(owners))

    async def on_agent(self, agent_id: AgentId) -> list[model.Session]:
        owners = select(tables.kernels.c.session_id).where(tables.kernels.c.agent == agent_id)
        return await self._select(tables.LIVE, tables.sessions.c.id.in_(owners))

    async def held(self, agent_ids: Collection[AgentId]) -> list[KernelOccupancy]:
        k, access_key = tables.kernels.c, tables.sessions.c.access_key
        renamed = k.id.label("kernel_id"), k.occupied_slots.label("slots")
        query = (
            select(*renamed, k.session_id, k.agent, access_key, k.status, k.status_changed, k.attempt, k.devices)
            .join(tables.sessions, tables.sessions.c.id == k.session_id)
            .where(k.agent.in_(list(agent_ids)), k.status.in_(HOLDING))
        )
        return await self._db.run_read(lambda s: [KernelOccupancy(**row._mapping) for row in s.execute(query)])

    async def networks(self) -> list[tuple[int, model.SessionNetwork]]:
        c = tables.sessions.c
        query = select(c.vni, c.network, c.status).where(c.vni.is_not(None))
        rows = await self._db.run_read(lambda s: s.execute(query).all())
        return [(vni, model.lasting(network, status)) for vni, network, status in rows]

    async def search(self, query: model.SessionQuery) -> Page[model.Session]:
        c = tables.sessions.c
        where = compile_filter(tables.sessions, query.filter, hidden=_HIDDEN)
        if query.statuses is not None:
            where.append(c.status.in_(query.statuses))
        where += _equal(query, c.access_key, c.domain_name, c.group_id)
        order = compile_order(tables.sessions, query.order, (c.created_at.desc(), c.id.asc()), hidden=_HIDDEN)

        def work(s: Connection) -> Page[model.Session]:
            total = s.execute(select(func.count()).select_from(tables.sessions).where(*where)).scalar_one()
            page = select(tables.sessions).where(*where).order_by(*order).limit(query.limit).offset(query.offset)
            return Page(items=_load(s, s.execute(page).all()), total_count=total)

        return await self._db.run_read(work)

    async def dependents(self, session_id: SessionId) -> list[model.Session]:
        c = tables.session_dependencies.c
        return await self._select(
            tables.LIVE, tables.sessions.c.id.in_(select(c.session_id).where(c.depends_on == session_id))
        )

    async def count_live(self, access_keys: Collection[AccessKey] | None = None) -> Mapping[AccessKey, int]:
        c = tables.sessions.c
        query = select(c.access_key, func.count()).where(tables.LIVE).group_by(c.access_key)
        if access_keys is not None:
            query = query.where(c.access_key.in_(list(access_keys)))
        return await self._db.run_read(lambda s: {AccessKey(key): count for key, count in s.execute(query)})

    async def occupied(
        self,
        *,
        access_key: AccessKey | None = None,
        group_id: GroupId | None = None,
        domain_name: DomainName | None = None,
    ) -> ResourceSlot:
        k, c = tables.kernels.c, tables.sessions.c
        bounds = {c.access_key: access_key, c.group_id: group_id, c.domain_name: domain_name}
        within = [column == value for column, value in bounds.items() if value is not None]
        query = select(k.occupied_slots).join(tables.sessions, c.id == k.session_id)
        query = query.where(k.agent.is_not(None), k.status.in_(HOLDING), *within)
        return await self._db.run_read(lambda s: sum(s.execute(query).scalars(), ResourceSlot()))

    async def bump(self, queries: Mapping[SessionId, int], stats: Mapping[KernelId, Mapping[str, Any]]) -> None:
        c = tables.sessions.c

        def work(s: Connection) -> None:
            for session_id, count in queries.items():
                s.execute(update(tables.sessions).where(c.id == session_id).values(num_queries=c.num_queries + count))
            for kernel_id, stat in stats.items():
                s.execute(update(tables.kernels).where(tables.kernels.c.id == kernel_id).values(last_stat=dict(stat)))

        await self._db.run_write(work)

    async def audit(self) -> model.SlotAudit:
        c = tables.kernels.c

        def work(s: Connection) -> model.SlotAudit:
            agents = s.execute(select(agents_tables.agents.c.id, agents_tables.agents.c.occupied_slots)).all()
            occupying = c.agent.is_not(None) & c.status.in_(HOLDING)
            sums: dict[str, ResourceSlot] = {}
            for agent_id, slots in s.execute(select(c.agent, c.occupied_slots).where(occupying)):
                sums[agent_id] = sums.get(agent_id, ResourceSlot()) + slots
            orphans = s.execute(select(c.id).where(c.session_id.not_in(select(tables.sessions.c.id)))).scalars().all()
            none = ResourceSlot()
            drift = {AgentId(a): (slots, sums.get(a, none)) for a, slots in agents if slots != sums.get(a, none)}
            return model.SlotAudit(drift=drift, orphans=tuple(KernelId(k) for k in orphans))

        return await self._db.run_read(work)
