"""Stores arrays in SQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy import Connection, Row, case, func, select, update

from ai.backend.common.ids import SessionId
from ai.backend.infra.database import Database
from ai.backend.infra.database.batching import chunks
from ai.backend.infra.database.prepared import Prepared
from ai.backend.manager.arrays.model import HELD_UNTIL, ArrayQuery, SessionArray, Throttle, outcome
from ai.backend.manager.query.model import Page
from ai.backend.manager.sessions.changes import EventDraft
from ai.backend.manager.sessions.model import OwnerLimits, Session
from ai.backend.manager.sessions.tables import LIVE, sessions

_COLUMNS = sessions.c
_IS_PENDING = (_COLUMNS.status == "PENDING", _COLUMNS.starts_at == HELD_UNTIL)
_IS_HELD = case((_COLUMNS.starts_at == HELD_UNTIL, 1), else_=0)
_FREE = func.max(_COLUMNS.array_parallel) - func.sum(1 - _IS_HELD)
_THROTTLED = Prepared(
    select(_COLUMNS.array_id, _FREE.label("free"))
    .where(LIVE, _COLUMNS.array_parallel.is_not(None), _COLUMNS.array_id.is_not(None))
    .group_by(_COLUMNS.array_id)
    .having(func.sum(_IS_HELD) > 0, _FREE > 0)
)


class Elements(Protocol):
    """Inserts and reads the sessions of an array in the database of the arrays.

    The store of sessions implements this protocol.
    """

    async def insert_together(
        self,
        sessions: Sequence[tuple[Session, EventDraft]],
        *,
        limits: OwnerLimits,
        first: Callable[[Connection], None],
    ) -> None: ...

    async def get_many(self, ids: Iterable[SessionId]) -> list[Session]: ...


class SqlArrayStore:
    """Implements :class:`ai.backend.manager.arrays.store.ArrayStore`."""

    def __init__(self, database: Database, store: Elements) -> None:
        self._db = database
        self._store = store

    async def insert(
        self,
        sessions: Sequence[tuple[Session, EventDraft]],
        *,
        limits: OwnerLimits,
        replaced_ids: Collection[SessionId] = (),
    ) -> None:
        def detach_replaced(conn: Connection) -> None:
            for session_ids in chunks(list(replaced_ids)):
                conn.execute(update(_COLUMNS.id.table).where(_COLUMNS.id.in_(session_ids)).values(array_id=None))

        await self._store.insert_together(sessions, limits=limits, first=detach_replaced)

    async def arrays(self, query: ArrayQuery) -> Page[SessionArray]:
        conditions = [
            column == value
            for column, value in (
                (_COLUMNS.access_key, query.access_key),
                (_COLUMNS.domain_name, query.domain_name),
                (_COLUMNS.array_id, query.array_id),
                (_COLUMNS.array_name, query.name),
            )
            if value is not None
        ]
        conditions.append(_COLUMNS.array_id.is_not(None))
        if query.is_live:
            live_array_ids = select(_COLUMNS.array_id).where(LIVE, *conditions)
            conditions.append(_COLUMNS.array_id.in_(live_array_ids))
        created_at = func.min(_COLUMNS.created_at)
        total_query = select(func.count(_COLUMNS.array_id.distinct())).where(*conditions)
        array_query = (
            select(_COLUMNS.array_id, func.min(_COLUMNS.array_index).label("index"))
            .where(*conditions)
            .group_by(_COLUMNS.array_id)
            .order_by(created_at.desc(), _COLUMNS.array_id)
            .limit(query.limit)
            .offset(query.offset)
        )

        def read_page(conn: Connection) -> Page[SessionArray]:
            array_ids = [row.array_id for row in conn.execute(array_query)]
            return Page(items=_load_arrays(conn, array_ids), total_count=conn.execute(total_query).scalar_one())

        return await self._db.run_read(read_page)

    async def elements(self, array_id: UUID) -> list[Session]:
        rows = await self._db.fetch(
            select(_COLUMNS.id).where(_COLUMNS.array_id == array_id).order_by(_COLUMNS.array_index)
        )
        return await self._sessions_of_rows(rows)

    async def throttled_arrays(self) -> list[Throttle]:
        return [Throttle(array_id=row.array_id, free=row.free) for row in await self._db.fetch(_THROTTLED)]

    async def held_elements(self, array_id: UUID, limit: int) -> list[Session]:
        is_of_array = (_COLUMNS.array_id == array_id, *_IS_PENDING)
        rows = await self._db.fetch(select(_COLUMNS.id).where(*is_of_array).order_by(_COLUMNS.array_index).limit(limit))
        return await self._sessions_of_rows(rows)

    async def _sessions_of_rows(self, rows: Sequence[Row[Any]]) -> list[Session]:
        by_id = {session.id: session for session in await self._store.get_many([row.id for row in rows])}
        return [by_id[row.id] for row in rows if row.id in by_id]


def _load_arrays(conn: Connection, array_ids: Sequence[UUID]) -> list[SessionArray]:
    counts: dict[UUID, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    count_query = (
        select(_COLUMNS.array_id, _COLUMNS.status, _COLUMNS.result, func.count().label("number"))
        .where(_COLUMNS.array_id.in_(array_ids))
        .group_by(_COLUMNS.array_id, _COLUMNS.status, _COLUMNS.result)
    )
    for row in conn.execute(count_query):
        counts[row.array_id][outcome(row.status, row.result)] += row.number
    shared_columns = (
        *(_COLUMNS.array_name, _COLUMNS.access_key, _COLUMNS.user_id, _COLUMNS.domain_name, _COLUMNS.group_name),
        *(_COLUMNS.image, _COLUMNS.array_parallel),
    )
    array_query = (
        select(_COLUMNS.array_id, *shared_columns, func.min(_COLUMNS.created_at).label("created_at"))
        .where(_COLUMNS.array_id.in_(array_ids))
        .group_by(_COLUMNS.array_id, *shared_columns)
    )
    array_by_id = {
        row.array_id: SessionArray(
            id=row.array_id,
            name=row.array_name,
            access_key=row.access_key,
            user_id=row.user_id,
            domain_name=row.domain_name,
            group_name=row.group_name,
            image=row.image,
            created_at=row.created_at,
            max_parallel=row.array_parallel,
            counts=dict(counts[row.array_id]),
        )
        for row in conn.execute(array_query)
    }
    return [array_by_id[array_id] for array_id in array_ids if array_id in array_by_id]
