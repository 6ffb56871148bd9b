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

_SESSION_FIELDS = tuple(field.name for field in fields(model.Session) if field.name not in ("kernels", "story"))
_KERNEL_FIELDS = tuple(field.name for field in fields(model.Kernel) if field.name != "live_stat")
_session_values, _kernel_values = attrgetter(*_SESSION_FIELDS), attrgetter(*_KERNEL_FIELDS)
_SESSION_COLUMNS, _KERNEL_COLUMNS = tables.sessions.c.keys(), tables.kernels.c.keys()
_HIDDEN = frozenset({"environ", "network", "bootstrap_script", "callback_url", "version"})


def _kernel_row(kernel: model.Kernel) -> dict[str, Any]:
    return dict(zip(_KERNEL_FIELDS, _kernel_values(kernel), strict=True))


def _session_row(session: model.Session) -> dict[str, Any]:
    return dict(zip(_SESSION_FIELDS, _session_values(session), strict=True))


def _changed_columns(
    field_names: tuple[str, ...], field_values: Callable[[Any], tuple[Any, ...]], old: object, new: object
) -> dict[str, Any]:
    compared = zip(field_names, field_values(old), field_values(new), strict=True)
    return {name: after for name, before, after in compared if after is not before and after != before}


def _load(conn: Connection, rows: Sequence[Row[Any]]) -> list[model.Session]:
    """Returns sessions with their kernels, in the order of ``rows``."""
    kernels: dict[UUID, list[model.Kernel]] = {}
    for ids in chunks([row.id for row in rows]):
        query = select(tables.kernels).where(tables.kernels.c.session_id.in_(ids)).order_by(tables.kernels.c.local_rank)
        for row in conn.execute(query):
            kernels.setdefault(row.session_id, []).append(model.Kernel(**dict(zip(_KERNEL_COLUMNS, row, strict=True))))
    return [
        model.Session(**dict(zip(_SESSION_COLUMNS, row, strict=True)), kernels=tuple(kernels[row.id])) for row in rows
    ]


def _already_exists(error: IntegrityError, session_id: UUID | None) -> SessionAlreadyExists:
    error_data = {"existingSessionId": str(session_id)} if session_id is not None else {}
    return SessionAlreadyExists(data=error_data)


def _equalities(query: model.SessionQuery, *columns: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    """Returns an equality condition for each of the columns that has a value in the query."""
    column_values = ((column, getattr(query, str(column.key))) for column in columns)
    return [column == value for column, value in column_values if value is not None]


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
        new_session = _NewSession(session, events, limits)
        try:
            await self._inserts.put(new_session)
        except IntegrityError as e:
            existing = await self.get(session.id)
            if existing is None:
                namesakes = await self.find_live(session.access_key, session.name)
                existing = next((row for row in namesakes if row.name == session.name), None)
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
        def work(conn: Connection) -> None:
            conn.execute(insert(tables.sessions), [_session_row(new.session) for new in batch])
            conn.execute(
                insert(tables.kernels), [_kernel_row(kernel) for new in batch for kernel in new.session.kernels]
            )
            links = [{"session_id": new.session.id, "depends_on": d} for new in batch for d in new.session.dependencies]
            if links:
                conn.execute(insert(tables.session_dependencies), links)
            for session in (new.session for new in batch):
                for step in self._insert_steps:
                    step(conn, session.id, session.vfolder_mounts, session.created_at)
            insert_events(conn, [(new.session, new.events, new.session.created_at) for new in batch])
            checked: list[tuple[AccessKey, model.OwnerLimits]] = []
            for new in batch:
                if (new.session.access_key, new.limits) not in checked:
                    checked.append((new.session.access_key, new.limits))
                    self._check_limits(conn, new.session, new.limits)

        await self._db.run_write(work)

    @staticmethod
    def _check_limits(conn: Connection, session: model.Session, limits: model.OwnerLimits) -> None:
        if limits.max_live is None and not limits.counts_pending:
            return
        key, owned, owner = session.access_key, tables.sessions.c, identity_tables.keypairs.c.access_key
        # SQLite has one writer; elsewhere the lock makes creations of one key wait for each other.
        conn.execute(select(owner).where(owner == key).with_for_update())
        if limits.max_live is not None:
            count = select(func.count()).select_from(tables.sessions).where(tables.LIVE, owned.access_key == key)
            if conn.execute(count).scalar_one() > limits.max_live:
                raise model.too_many_sessions(limits.max_live)
        if limits.counts_pending:
            kernel = tables.kernels.c
            pending_conditions = (owned.access_key == key, owned.status == SessionStatus.PENDING)
            pending = (
                select(owned.id, kernel.requested_slots)
                .join(tables.kernels, kernel.session_id == owned.id)
                .where(*pending_conditions)
            )
            rows = conn.execute(pending).all()
            limits.check_pending(len({row[0] for row in rows}), sum((row[1] for row in rows), ResourceSlot()))

    async def save(self, changes: Sequence[Change], *, ack: ObservationAck | None = None) -> None:
        try:

            def work(conn: Connection) -> None:
                self._write(conn, changes)
                move_slots(conn, slot_deltas(changes))
                insert_events(conn, [(change.new, change.events, change.new.status_changed) for change in changes])
                if ack is not None:
                    acknowledge(conn, ack)

            await self._db.run_write(work)
        except IntegrityError as e:
            if any(change.new.vni is not None and change.new.vni != change.old.vni for change in changes):
                raise StaleVersion("another session has the same network number") from e
            named = [await self.newest_named(c.new.access_key, c.new.name) for c in changes if c.old.name != c.new.name]
            raise _already_exists(e, next((row.id for row in named if row is not None), None)) from None

    @staticmethod
    def _write(conn: Connection, changes: Sequence[Change]) -> None:
        """Updates the rows of sessions. Raises StaleVersion unless each has the version before its change."""
        updates = [
            (c.old, {**_changed_columns(_SESSION_FIELDS, _session_values, c.old, c.new), "version": c.old.version + 1})
            for c in changes
        ]
        if len(updates) == 1:
            old, new_values = updates[0]
            is_unchanged = (tables.sessions.c.id == old.id, tables.sessions.c.version == old.version)
            if conn.execute(update(tables.sessions).where(*is_unchanged).values(new_values)).rowcount != 1:
                raise StaleVersion(f"session {old.id} is not at version {old.version} any more")
        elif updates:
            check_versions(conn, {old.id: old.version for old, _ in updates})
            update_many(conn, tables.sessions, [(old.id, new_values) for old, new_values in updates])
        kernels = [
            (new_kernel.id, new_values)
            for change in changes
            for old_kernel, new_kernel in zip(change.old.kernels, change.new.kernels, strict=True)
            if new_kernel is not old_kernel
            and (new_values := _changed_columns(_KERNEL_FIELDS, _kernel_values, old_kernel, new_kernel))
        ]
        update_many(conn, tables.kernels, kernels)

    async def _select(
        self, *conditions: ColumnElement[bool] | TextClause, order: Any = None, limit: int | None = None
    ) -> list[model.Session]:
        cols = tables.sessions.c
        query = select(tables.sessions).where(*conditions).order_by(*(order or (cols.created_at, cols.id)))
        limited_query = query.limit(limit) if limit is not None else query
        return await self._db.run_read(lambda conn: _load(conn, conn.execute(limited_query).all()))

    async def get(self, session_id: SessionId) -> model.Session | None:
        sessions = await self._select(tables.sessions.c.id == session_id)
        return sessions[0] if sessions else None

    async def get_many(self, ids: Iterable[SessionId]) -> list[model.Session]:
        sessions: list[model.Session] = []
        for chunk in chunks(dict.fromkeys(ids)):
            sessions += await self._select(tables.sessions.c.id.in_(chunk))
        return sessions

    async def find_live(self, access_key: AccessKey | None, ref: str, *, limit: int = 10) -> list[model.Session]:
        cols = tables.sessions.c
        live_of_owner = [tables.LIVE] if access_key is None else [tables.LIVE, cols.access_key == access_key]
        as_text = sql_cast(cols.id, String)
        exact_matches = await self._select(*live_of_owner, or_(cols.name == ref, as_text == ref.lower()), limit=limit)
        if exact_matches or not ref:
            return exact_matches
        has_prefix = or_(cols.name.startswith(ref, autoescape=True), as_text.startswith(ref.lower(), autoescape=True))
        return await self._select(*live_of_owner, has_prefix, limit=limit)

    async def newest_named(self, access_key: AccessKey, name: str) -> model.Session | None:
        cols = tables.sessions.c
        order = (cols.created_at.desc(), cols.id)
        newest = await self._select(cols.access_key == access_key, cols.name == name, order=order, limit=1)
        return newest[0] if newest else None

    async def by_status(self, statuses: Collection[SessionStatus]) -> list[model.Session]:
        return await self._select(tables.sessions.c.status.in_(list(statuses)))

    async def refreshed(
        self, statuses: Collection[SessionStatus], cached: Callable[[SessionId], model.Session | None]
    ) -> list[model.Session]:
        cols = tables.sessions.c
        query = select(cols.id, cols.version).where(cols.status.in_(list(statuses))).order_by(cols.created_at, cols.id)

        def work(conn: Connection) -> list[model.Session]:
            versions = {row[0]: row[1] for row in conn.execute(query)}
            current = {i: known for i, v in versions.items() if (known := cached(i)) is not None and known.version == v}
            for chunk in chunks([session_id for session_id in versions if session_id not in current]):
                rows = conn.execute(select(tables.sessions).where(cols.id.in_(chunk))).all()
                current.update((session.id, session) for session in _load(conn, rows))
            return [current[session_id] for session_id in versions]

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
        return await self._db.run_read(lambda conn: [KernelOccupancy(**row._mapping) for row in conn.execute(query)])

    async def networks(self) -> list[tuple[int, model.SessionNetwork]]:
        cols = tables.sessions.c
        query = select(cols.vni, cols.network, cols.status).where(cols.vni.is_not(None))
        rows = await self._db.run_read(lambda conn: conn.execute(query).all())
        return [(vni, model.lasting(network, status)) for vni, network, status in rows]

    async def search(self, query: model.SessionQuery) -> Page[model.Session]:
        cols = tables.sessions.c
        conditions = compile_filter(tables.sessions, query.filter, hidden=_HIDDEN)
        if query.statuses is not None:
            conditions.append(cols.status.in_(query.statuses))
        conditions += _equalities(query, cols.access_key, cols.domain_name, cols.group_id)
        order = compile_order(tables.sessions, query.order, (cols.created_at.desc(), cols.id.asc()), hidden=_HIDDEN)

        def work(conn: Connection) -> Page[model.Session]:
            total = conn.execute(select(func.count()).select_from(tables.sessions).where(*conditions)).scalar_one()
            page = select(tables.sessions).where(*conditions).order_by(*order).limit(query.limit).offset(query.offset)
            return Page(items=_load(conn, conn.execute(page).all()), total_count=total)

        return await self._db.run_read(work)

    async def dependents(self, session_id: SessionId) -> list[model.Session]:
        cols = tables.session_dependencies.c
        return await self._select(
            tables.LIVE, tables.sessions.c.id.in_(select(cols.session_id).where(cols.depends_on == session_id))
        )

    async def count_live(self, access_keys: Collection[AccessKey] | None = None) -> Mapping[AccessKey, int]:
        cols = tables.sessions.c
        query = select(cols.access_key, func.count()).where(tables.LIVE).group_by(cols.access_key)
        if access_keys is not None:
            query = query.where(cols.access_key.in_(list(access_keys)))
        return await self._db.run_read(lambda conn: {AccessKey(key): count for key, count in conn.execute(query)})

    async def occupied(
        self,
        *,
        access_key: AccessKey | None = None,
        group_id: GroupId | None = None,
        domain_name: DomainName | None = None,
    ) -> ResourceSlot:
        kernel, session = tables.kernels.c, tables.sessions.c
        wanted_values = {session.access_key: access_key, session.group_id: group_id, session.domain_name: domain_name}
        conditions = [column == value for column, value in wanted_values.items() if value is not None]
        query = select(kernel.occupied_slots).join(tables.sessions, session.id == kernel.session_id)
        query = query.where(kernel.agent.is_not(None), kernel.status.in_(HOLDING), *conditions)
        return await self._db.run_read(lambda conn: sum(conn.execute(query).scalars(), ResourceSlot()))

    async def bump(self, queries: Mapping[SessionId, int], stats: Mapping[KernelId, Mapping[str, Any]]) -> None:
        cols = tables.sessions.c

        def work(conn: Connection) -> None:
            for session_id, count in queries.items():
                conn.execute(
                    update(tables.sessions).where(cols.id == session_id).values(num_queries=cols.num_queries + count)
                )
            for kernel_id, stat in stats.items():
                conn.execute(
                    update(tables.kernels).where(tables.kernels.c.id == kernel_id).values(last_stat=dict(stat))
                )

        await self._db.run_write(work)

    async def audit(self) -> model.SlotAudit:
        cols = tables.kernels.c

        def work(conn: Connection) -> model.SlotAudit:
            agents = conn.execute(select(agents_tables.agents.c.id, agents_tables.agents.c.occupied_slots)).all()
            occupying = cols.agent.is_not(None) & cols.status.in_(HOLDING)
            sums: dict[str, ResourceSlot] = {}
            for agent_id, slots in conn.execute(select(cols.agent, cols.occupied_slots).where(occupying)):
                sums[agent_id] = sums.get(agent_id, ResourceSlot()) + slots
            orphans = (
                conn.execute(select(cols.id).where(cols.session_id.not_in(select(tables.sessions.c.id))))
                .scalars()
                .all()
            )
            zero = ResourceSlot()
            drift = {AgentId(a): (slots, sums.get(a, zero)) for a, slots in agents if slots != sums.get(a, zero)}
            return model.SlotAudit(drift=drift, orphans=tuple(KernelId(kernel_id) for kernel_id in orphans))

        return await self._db.run_read(work)
