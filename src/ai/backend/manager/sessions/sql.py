"""Stores sessions in SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from operator import attrgetter
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    String,
    TextClause,
    func,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.exc import IntegrityError

from ai.backend.common.errors import SessionAlreadyExists, StaleVersion, Unavailable
from ai.backend.common.ids import AccessKey, AgentId, DomainName, GroupId, KernelId, SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SessionStatus
from ai.backend.core.lifecycle.kernel import HOLDING
from ai.backend.infra.database import Database
from ai.backend.infra.database.batching import MAX_CHUNK_ITEMS, BatchWriter
from ai.backend.infra.database.prepared import IsOneOf, Prepared, insertion, is_any, parameter, updating
from ai.backend.manager.agents import tables as agents_tables
from ai.backend.manager.agents.model import KernelOccupancy
from ai.backend.manager.folders.model import FolderMount
from ai.backend.manager.identity import tables as identity_tables
from ai.backend.manager.query.model import Page
from ai.backend.manager.query.sql import compile_filter, compile_order
from ai.backend.manager.sessions import model, tables
from ai.backend.manager.sessions.changes import Change, EventDraft, ObservationAck, claim_changes, slot_deltas
from ai.backend.manager.sessions.claims.model import as_occupancy, without_claim_devices
from ai.backend.manager.sessions.claims.sql import (
    SqlClaims,
    check_named_claims,
    held_claims,
    occupied_by_claims,
    write_claims,
)
from ai.backend.manager.sessions.sql_bulk import check_versions, move_slots, update_many
from ai.backend.manager.sessions.sql_outbox import SqlOutbox, acknowledge, insert_events
from ai.backend.manager.sessions.store import UNLIMITED

_SESSION_FIELDS = tuple(
    field for field in model.Session.__struct_fields__ if field not in ("kernels", "recent_transitions")
)
_KERNEL_FIELDS = tuple(field for field in model.Kernel.__struct_fields__ if field != "live_stat")
_session_values, _kernel_values = attrgetter(*_SESSION_FIELDS), attrgetter(*_KERNEL_FIELDS)
_SESSION_COLUMNS, _KERNEL_COLUMNS = tables.sessions.c.keys(), tables.kernels.c.keys()
MAX_COUNTED = 10_000
"""The maximum number of sessions after a page that the total of the page counts (docs/decisions/0255)."""
_HIDDEN_FIELDS = frozenset({"environ", "sealed_environ", "network", "bootstrap_script", "callback_url", "version"})


def _kernel_row(kernel: model.Kernel) -> dict[str, Any]:
    return dict(zip(_KERNEL_FIELDS, _kernel_values(kernel), strict=True))


def _session_row(session: model.Session) -> dict[str, Any]:
    return dict(zip(_SESSION_FIELDS, _session_values(session), strict=True))


def _changed_columns(
    field_names: tuple[str, ...], field_values: Callable[[Any], tuple[Any, ...]], old: object, new: object
) -> dict[str, Any]:
    compared_values = zip(field_names, field_values(old), field_values(new), strict=True)
    return {
        name: new_value
        for name, old_value, new_value in compared_values
        if new_value is not old_value and new_value != old_value
    }


def _load(conn: Connection, rows: Sequence[Any]) -> list[model.Session]:
    """Returns sessions with their kernels, in the order of ``rows``."""
    if not rows:
        return []
    kernels: dict[UUID, list[model.Kernel]] = {}
    for row in _KERNELS_OF.all(conn, {"ids": [row.id for row in rows]}):
        kernels.setdefault(row.session_id, []).append(model.Kernel(**dict(zip(_KERNEL_COLUMNS, row, strict=True))))
    return [
        model.Session(**dict(zip(_SESSION_COLUMNS, row, strict=True)), kernels=tuple(kernels[row.id])) for row in rows
    ]


def _already_exists(error: IntegrityError, session_id: UUID | None) -> SessionAlreadyExists:
    error_data = {"existingSessionId": str(session_id)} if session_id is not None else {}
    return SessionAlreadyExists(data=error_data)


def _equality_conditions(query: model.SessionQuery, *columns: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    """Returns an equality condition for each of the columns that has a value in the query."""
    column_values = ((column, getattr(query, str(column.key))) for column in columns)
    return [column == value for column, value in column_values if value is not None]


def _conditions(query: model.SessionQuery) -> list[ColumnElement[bool]]:
    """Returns the SQL conditions of a query, except the condition on statuses."""
    cols = tables.sessions.c
    conditions = compile_filter(tables.sessions, query.filter, hidden=_HIDDEN_FIELDS)
    return [*conditions, *_equality_conditions(query, cols.access_key, cols.domain_name, cols.group_id)]


def _sessions_where(*conditions: ColumnElement[bool] | TextClause) -> Select[Any]:
    return select(tables.sessions).where(*conditions).order_by(_SESSION.created_at, _SESSION.id)


def _select_held() -> Select[Any]:
    renamed_columns = _KERNEL.id.label("kernel_id"), _KERNEL.occupied_slots.label("slots")
    detail_columns = (
        _KERNEL.session_id,
        _KERNEL.agent,
        _SESSION.access_key,
        _KERNEL.status,
        _KERNEL.status_changed,
        _KERNEL.attempt,
        _KERNEL.devices,
    )
    kernels_query = select(*renamed_columns, *detail_columns, _SESSION.device_requests, _SESSION.claim_id).join(
        tables.sessions, _SESSION.id == _KERNEL.session_id
    )
    return kernels_query.where(IsOneOf(_KERNEL.agent, "agents"), is_any(_KERNEL.status, HOLDING))


_SESSION, _KERNEL = tables.sessions.c, tables.kernels.c
_IS_OWNED = _SESSION.access_key == parameter(_SESSION.access_key)
_INSERT_SESSION, _INSERT_KERNEL = insertion(tables.sessions, _SESSION_FIELDS), insertion(tables.kernels, _KERNEL_FIELDS)
_KERNELS_OF = Prepared(select(tables.kernels).where(IsOneOf(_KERNEL.session_id, "ids")).order_by(_KERNEL.local_rank))
_BY_ID = Prepared(_sessions_where(_SESSION.id == parameter(_SESSION.id)))
_BY_IDS = Prepared(_sessions_where(IsOneOf(_SESSION.id, "ids")))
_BY_STATUS = Prepared(_sessions_where(IsOneOf(_SESSION.status, "statuses")))
_SELECT_VERSIONS = Prepared(
    select(_SESSION.id, _SESSION.version)
    .where(IsOneOf(_SESSION.status, "statuses"))
    .order_by(_SESSION.created_at, _SESSION.id)
)
_OF_KERNELS = Prepared(
    _sessions_where(_SESSION.id.in_(select(_KERNEL.session_id).where(IsOneOf(_KERNEL.id, "kernel_ids"))))
)
_IS_NAMED = _SESSION.name == parameter(_SESSION.name)
_LIVE_NAMED = Prepared(_sessions_where(tables.LIVE, _IS_OWNED, _IS_NAMED))
_NEWEST_NAMED = Prepared(
    select(tables.sessions).where(_IS_OWNED, _IS_NAMED).order_by(_SESSION.created_at.desc(), _SESSION.id).limit(1)
)
_SELECT_HELD = Prepared(_select_held())
_ACCESS_KEY = identity_tables.keypairs.c.access_key
_LOCK_OWNER = Prepared(select(_ACCESS_KEY).where(parameter(_ACCESS_KEY) == _ACCESS_KEY).with_for_update())
_COUNT_LIVE = Prepared(select(func.count().label("live")).select_from(tables.sessions).where(tables.LIVE, _IS_OWNED))
_PENDING_OF_OWNER = Prepared(
    select(_SESSION.id, _KERNEL.requested_slots)
    .join(tables.kernels, _KERNEL.session_id == _SESSION.id)
    .where(_IS_OWNED, _SESSION.status == SessionStatus.PENDING)
)


InsertStep: TypeAlias = Callable[[Connection, SessionId, Sequence[FolderMount], datetime], None]
"""Links the mounts of a new session: connection, session, mounts, time of creation."""


class _NewSession(msgspec.Struct, frozen=True):
    session: model.Session
    events: Sequence[EventDraft]
    limits: model.OwnerLimits


class SqlSessionStore(SqlClaims, SqlOutbox):
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
            existing_session = await self.get(session.id)
            if existing_session is None:
                existing_session = await self.live_named(session.access_key, session.name)
            if existing_session is None:
                raise
            raise _already_exists(e, existing_session.id) from None

    async def _insert_batch(self, batch: Sequence[_NewSession]) -> Sequence[BaseException | None]:
        """Inserts all sessions in one transaction; if that fails, each in its own, so that each gets its own error."""
        try:
            await self._insert_all(batch)
        except Unavailable:
            raise
        except Exception:
            if len(batch) == 1:
                raise
            inserts = (self._insert_all([new_session]) for new_session in batch)
            return await asyncio.gather(*inserts, return_exceptions=True)
        return [None] * len(batch)

    async def insert_together(
        self,
        sessions: Sequence[tuple[model.Session, EventDraft]],
        *,
        limits: model.OwnerLimits,
        first: Callable[[Connection], None],
    ) -> None:
        """Inserts all or none of an owner's sessions in one transaction, in which ``first`` is called first. Errors are
        those of :meth:`insert`.
        """
        try:
            await self._insert_all([_NewSession(session, [event], limits) for session, event in sessions], first)
        except IntegrityError as e:
            raise SessionAlreadyExists("A live session has the name of one of these.") from e

    async def _insert_all(
        self, batch: Sequence[_NewSession], prepare: Callable[[Connection], None] = lambda _: None
    ) -> None:
        def transact(conn: Connection) -> None:
            prepare(conn)
            if claim_ids := {
                new_session.session.claim_id for new_session in batch if new_session.session.claim_id is not None
            }:
                check_named_claims(conn, claim_ids)
            _INSERT_SESSION.execute(conn, *(_session_row(new_session.session) for new_session in batch))
            _INSERT_KERNEL.execute(
                conn, *(_kernel_row(kernel) for new_session in batch for kernel in new_session.session.kernels)
            )
            dependency_rows = [
                {"session_id": new_session.session.id, "depends_on": dependency_id}
                for new_session in batch
                for dependency_id in new_session.session.dependencies
            ]
            if dependency_rows:
                insertion(tables.session_dependencies).execute(conn, *dependency_rows)
            for session in (new_session.session for new_session in batch):
                for insert_step in self._insert_steps:
                    insert_step(conn, session.id, session.vfolder_mounts, session.created_at)
            insert_events(
                conn,
                [(new_session.session, new_session.events, new_session.session.created_at) for new_session in batch],
            )
            checked_owners: list[tuple[AccessKey, model.OwnerLimits]] = []
            for new_session in batch:
                if (new_session.session.access_key, new_session.limits) not in checked_owners:
                    checked_owners.append((new_session.session.access_key, new_session.limits))
                    self._check_limits(conn, new_session.session, new_session.limits)

        await self._db.run_write(transact)

    @staticmethod
    def _check_limits(conn: Connection, session: model.Session, limits: model.OwnerLimits) -> None:
        if limits.max_live is None and not limits.counts_pending:
            return
        owner = {"access_key": session.access_key}
        # SQLite has one writer; elsewhere the lock makes creations of one key wait for each other.
        _LOCK_OWNER.all(conn, owner)
        if limits.max_live is not None and _COUNT_LIVE.first(conn, owner).live > limits.max_live:
            raise model.too_many_sessions(limits.max_live)
        if limits.counts_pending:
            rows = _PENDING_OF_OWNER.all(conn, owner)
            limits.check_pending(len({row[0] for row in rows}), sum((row[1] for row in rows), ResourceSlot()))

    async def save(self, changes: Sequence[Change], *, ack: ObservationAck | None = None) -> None:
        try:

            def transact(conn: Connection) -> None:
                self._write(conn, changes)
                write_claims(conn, claim_changes(changes))
                move_slots(conn, slot_deltas(changes))
                insert_events(conn, [(change.new, change.events, change.new.status_changed) for change in changes])
                if ack is not None:
                    acknowledge(conn, ack)

            await self._db.run_write(transact)
        except IntegrityError as e:
            if any(change.new.vni is not None and change.new.vni != change.old.vni for change in changes):
                raise StaleVersion("another session has the same network number") from e
            newest_sessions = [
                await self.newest_named(renaming_change.new.access_key, renaming_change.new.name)
                for renaming_change in changes
                if renaming_change.old.name != renaming_change.new.name
            ]
            raise _already_exists(e, next((row.id for row in newest_sessions if row is not None), None)) from None

    @staticmethod
    def _write(conn: Connection, changes: Sequence[Change]) -> None:
        """Updates the rows of sessions. Raises StaleVersion unless each has the version before its change."""
        updates = [
            (
                session_change.old,
                {
                    **_changed_columns(_SESSION_FIELDS, _session_values, session_change.old, session_change.new),
                    "version": session_change.old.version + 1,
                },
            )
            for session_change in changes
        ]
        if len(updates) == 1:
            old_session, new_values = updates[0]
            statement = updating(tables.sessions, ("id", "version"), tuple(new_values))
            row = {f"new_{name}": value for name, value in new_values.items()}
            if statement.execute(conn, {**row, "id": old_session.id, "version": old_session.version}) != 1:
                raise StaleVersion(f"session {old_session.id} is not at version {old_session.version} any more")
        elif updates:
            check_versions(conn, {old_session.id: old_session.version for old_session, _ in updates})
            update_many(conn, tables.sessions, [(old_session.id, new_values) for old_session, new_values in updates])
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

    async def _read(self, statement: Prepared, values: Mapping[str, Any]) -> list[model.Session]:
        return await self._db.run_read(lambda conn: _load(conn, statement.all(conn, values)))

    async def get(self, session_id: SessionId) -> model.Session | None:
        sessions = await self._read(_BY_ID, {"id": session_id})
        return sessions[0] if sessions else None

    async def get_many(self, ids: Iterable[SessionId]) -> list[model.Session]:
        return await self._read(_BY_IDS, {"ids": list(ids)})

    async def live_named(self, access_key: AccessKey, name: str) -> model.Session | None:
        sessions = await self._read(_LIVE_NAMED, {"access_key": access_key, "name": name})
        return sessions[0] if sessions else None

    async def find_live(self, access_key: AccessKey | None, ref: str, *, limit: int = 10) -> list[model.Session]:
        cols = tables.sessions.c
        live_of_owner = [tables.LIVE] if access_key is None else [tables.LIVE, cols.access_key == access_key]
        if access_key is not None:
            session = await self.live_named(access_key, ref)
            exact_matches = [session] if session is not None else []
        else:
            is_exact = cols.name == ref
            with suppress(ValueError):  # a session that is named as another's id may not hide it
                is_exact = or_(is_exact, cols.id == UUID(ref))
            exact_matches = await self._select(tables.LIVE, is_exact, limit=limit)
        if exact_matches or not ref:
            return exact_matches
        id_text = sql_cast(cols.id, String)
        has_prefix = or_(cols.name.startswith(ref, autoescape=True), id_text.startswith(ref.lower(), autoescape=True))
        return await self._select(*live_of_owner, has_prefix, limit=limit)

    async def newest_named(self, access_key: AccessKey, name: str) -> model.Session | None:
        newest_sessions = await self._read(_NEWEST_NAMED, {"access_key": access_key, "name": name})
        return newest_sessions[0] if newest_sessions else None

    async def by_status(self, statuses: Collection[SessionStatus]) -> list[model.Session]:
        return await self._read(_BY_STATUS, {"statuses": statuses})

    async def refreshed(
        self, statuses: Collection[SessionStatus], find_cached: Callable[[SessionId], model.Session | None]
    ) -> list[model.Session]:
        def transact(conn: Connection) -> list[model.Session]:
            versions = dict(_SELECT_VERSIONS.all(conn, {"statuses": statuses}))
            session_of_id = {
                stored_id: cached_session
                for stored_id, version in versions.items()
                if (cached_session := find_cached(stored_id)) is not None and cached_session.version == version
            }
            if missing_ids := [session_id for session_id in versions if session_id not in session_of_id]:
                loaded_sessions = _load(conn, _BY_IDS.all(conn, {"ids": missing_ids}))
                session_of_id.update((session.id, session) for session in loaded_sessions)
            return [session_of_id[session_id] for session_id in versions]

        return await self._db.run_read(transact)

    async def of_kernels(self, kernel_ids: Collection[KernelId]) -> list[model.Session]:
        return await self._read(_OF_KERNELS, {"kernel_ids": kernel_ids})

    async def on_agent(self, agent_id: AgentId) -> list[model.Session]:
        session_ids = select(tables.kernels.c.session_id).where(tables.kernels.c.agent == agent_id)
        return await self._select(tables.LIVE, tables.sessions.c.id.in_(session_ids))

    async def held(self, agent_ids: Collection[AgentId]) -> list[KernelOccupancy]:
        def transact(conn: Connection) -> list[KernelOccupancy]:
            kernels = [KernelOccupancy(**row._mapping) for row in _SELECT_HELD.all(conn, {"agents": agent_ids})]
            claims = held_claims(conn, agent_ids)
            return [*map(without_claim_devices, kernels), *map(as_occupancy, claims)]

        return await self._db.run_read(transact)

    async def workloads(self) -> list[model.KernelWorkload]:
        kernel, session = tables.kernels.c, tables.sessions.c
        columns = (kernel.session_id, kernel.id.label("kernel_id"), kernel.agent, kernel.container_id)
        query = select(*columns, session.runtime_class).join(tables.sessions, session.id == kernel.session_id)
        # Named one by one, so that the index of statuses is searched and no ended kernel is read.
        query = query.where(kernel.status.in_(HOLDING), kernel.agent.is_not(None), kernel.container_id.is_not(None))
        rows = await self._db.run_read(lambda conn: conn.execute(query.order_by(kernel.id)).all())
        return [model.KernelWorkload(**row._mapping) for row in rows]

    async def networks(self) -> list[tuple[int, model.SessionNetwork]]:
        cols = tables.sessions.c
        query = select(cols.vni, cols.network, cols.status).where(cols.vni > 0)
        rows = await self._db.run_read(lambda conn: conn.execute(query).all())
        return [(vni, model.network_to_keep(network, status)) for vni, network, status in rows]

    async def search(self, query: model.SessionQuery) -> Page[model.Session]:
        cols = tables.sessions.c
        conditions = _conditions(query)
        if query.statuses is not None:
            conditions.append(cols.status.in_(query.statuses))
        order = compile_order(
            tables.sessions, query.order, (cols.created_at.desc(), cols.id.asc()), hidden=_HIDDEN_FIELDS
        )

        def transact(conn: Connection) -> Page[model.Session]:
            matching_rows: Select[Any] = select(literal_column("1")).select_from(tables.sessions).where(*conditions)
            counted_rows = matching_rows.limit(query.offset + query.limit + MAX_COUNTED).subquery()
            total = conn.execute(select(func.count()).select_from(counted_rows)).scalar_one()
            page = select(tables.sessions).where(*conditions).order_by(*order).limit(query.limit).offset(query.offset)
            return Page(items=_load(conn, conn.execute(page).all()), total_count=total)

        return await self._db.run_read(transact)

    async def count_by_status(self, query: model.SessionQuery) -> Mapping[str, int]:
        counted_rows = select(tables.sessions.c.status).where(*_conditions(query)).limit(MAX_COUNTED).subquery()
        by_status = select(counted_rows.c.status, func.count()).group_by(counted_rows.c.status)
        return await self._db.run_read(lambda conn: {str(status): count for status, count in conn.execute(by_status)})

    async def dependents(self, session_id: SessionId) -> list[model.Session]:
        cols = tables.session_dependencies.c
        return await self._select(
            tables.LIVE, tables.sessions.c.id.in_(select(cols.session_id).where(cols.depends_on == session_id))
        )

    async def live_statuses(self) -> Mapping[SessionStatus, tuple[int, datetime]]:
        cols = tables.sessions.c
        status_since = func.coalesce(cols.starts_at, cols.status_changed)
        oldest_since = func.min(status_since, type_=cols.status_changed.type)
        # Named one by one, so that the index of statuses is searched and no ended session is read.
        living_statuses = [status for status in SessionStatus if not status.is_final]
        query = (
            select(cols.status, func.count(), oldest_since)
            .where(cols.status.in_(living_statuses))
            .group_by(cols.status)
        )
        return await self._db.run_read(
            lambda conn: {
                SessionStatus(status): (count, status_since) for status, count, status_since in conn.execute(query)
            }
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
        value_of_column = {session.access_key: access_key, session.group_id: group_id, session.domain_name: domain_name}
        conditions = [column == value for column, value in value_of_column.items() if value is not None]
        query = select(kernel.occupied_slots).join(tables.sessions, session.id == kernel.session_id)
        query = query.where(kernel.agent.is_not(None), kernel.status.in_(HOLDING), *conditions)
        claim_columns = tables.device_claims.c
        claim_values = {
            claim_columns.access_key: access_key,
            claim_columns.group_id: group_id,
            claim_columns.domain_name: domain_name,
        }
        claim_conditions = [column == value for column, value in claim_values.items() if value is not None]
        return await self._db.run_read(
            lambda conn: sum(conn.execute(query).scalars(), occupied_by_claims(conn, *claim_conditions))
        )

    async def bump(self, queries: Mapping[SessionId, int], stats: Mapping[KernelId, Mapping[str, Any]]) -> None:
        cols = tables.sessions.c

        def transact(conn: Connection) -> None:
            for session_id, count in queries.items():
                conn.execute(
                    update(tables.sessions).where(cols.id == session_id).values(num_queries=cols.num_queries + count)
                )
            for kernel_id, stat in stats.items():
                conn.execute(
                    update(tables.kernels).where(tables.kernels.c.id == kernel_id).values(last_stat=dict(stat))
                )

        await self._db.run_write(transact)

    async def audit(self) -> model.SlotAudit:
        cols = tables.kernels.c

        def transact(conn: Connection) -> model.SlotAudit:
            agents = conn.execute(select(agents_tables.agents.c.id, agents_tables.agents.c.occupied_slots)).all()
            is_occupying = cols.agent.is_not(None) & cols.status.in_(HOLDING)
            counted_slots: dict[str, ResourceSlot] = {}
            for agent_id, slots in conn.execute(select(cols.agent, cols.occupied_slots).where(is_occupying)):
                counted_slots[agent_id] = counted_slots.get(agent_id, ResourceSlot()) + slots
            for claim in held_claims(conn):
                assert claim.agent is not None
                counted_slots[claim.agent] = counted_slots.get(claim.agent, ResourceSlot()) + claim.occupied_slots
            orphans = (
                conn.execute(select(cols.id).where(cols.session_id.not_in(select(tables.sessions.c.id))))
                .scalars()
                .all()
            )
            no_slots = ResourceSlot()
            drift = {
                AgentId(agent_name): (slots, counted_slots.get(agent_name, no_slots))
                for agent_name, slots in agents
                if slots != counted_slots.get(agent_name, no_slots)
            }
            return model.SlotAudit(drift=drift, orphans=tuple(KernelId(kernel_id) for kernel_id in orphans))

        return await self._db.run_read(transact)
