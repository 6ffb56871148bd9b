"""Stores the use of model services in SQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid5

from msgspec.structs import asdict
from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, null, select, update
from sqlalchemy.exc import IntegrityError

from ai.backend.common.errors import StaleVersion
from ai.backend.infra.database import Database
from ai.backend.manager.serving import tables
from ai.backend.manager.serving.model import UseGroup, UseGrouping, UseKey, UseQuery, UseReport, UseSums

_ENDPOINTS, _USAGE, _POSITIONS = tables.endpoints, tables.endpoint_usage, tables.endpoint_usage_positions
_SUM_FIELDS = tuple(field for field in UseSums.__struct_fields__)
_HOURS_PER_DAY = 24
_COLUMN_OF_GROUPING: Mapping[UseGrouping, ColumnElement[Any]] = {
    UseGrouping.ENDPOINT: _USAGE.c.endpoint_id,
    UseGrouping.TOKEN: _USAGE.c.token,
    UseGrouping.USER: _USAGE.c.user_id,
    UseGrouping.PROJECT: _ENDPOINTS.c.group_id,
    UseGrouping.REVISION: _USAGE.c.revision_id,
    UseGrouping.REPLICA: _USAGE.c.replica_id,
    UseGrouping.HOUR: _USAGE.c.hour,
    UseGrouping.DAY: _USAGE.c.hour // _HOURS_PER_DAY,
}
_IN_TIME_ORDER = frozenset({UseGrouping.HOUR, UseGrouping.DAY})


class SqlEndpointUsageStore:
    """Implements :class:`ai.backend.manager.serving.store.EndpointUsageStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def position(self, coordinator_id: str) -> int:
        rows = await self._db.fetch(select(_POSITIONS.c.last).where(_POSITIONS.c.source == coordinator_id))
        return int(rows[0].last) if rows else 0

    async def add(
        self, coordinator_id: str, *, after_number: int, last_number: int, use: Mapping[UseKey, UseSums]
    ) -> None:
        def transact(conn: Connection) -> None:
            # The row is written before anything is read: of two managers that add the same reports, one waits here.
            _advance(conn, coordinator_id, after_number, last_number)
            endpoint_ids = {key.endpoint_id for key in use}
            stored_ids = set(conn.execute(select(_ENDPOINTS.c.id).where(_ENDPOINTS.c.id.in_(endpoint_ids))).scalars())
            for key, sums in use.items():
                if key.endpoint_id in stored_ids:
                    _add(conn, key, sums)

        await self._db.run_write(transact)

    async def usage(self, query: UseQuery) -> UseReport:
        group_column = _COLUMN_OF_GROUPING[query.by]
        conditions = [_USAGE.c.hour >= query.since, _USAGE.c.hour < query.until]
        conditions += [
            column == value
            for column, value in (
                (_USAGE.c.endpoint_id, query.endpoint_id),
                (_ENDPOINTS.c.user_id, query.user_id),
                (_ENDPOINTS.c.domain_name, query.domain_name),
            )
            if value is not None
        ]
        sums = [func.coalesce(func.sum(_USAGE.c[name]), 0).label(name) for name in _SUM_FIELDS]
        usage_and_endpoints = _USAGE.join(_ENDPOINTS, _ENDPOINTS.c.id == _USAGE.c.endpoint_id)
        total = select(*sums).select_from(usage_and_endpoints).where(*conditions)
        tokens = func.sum(_USAGE.c.prompt_tokens + _USAGE.c.output_tokens)
        order: tuple[Any, ...] = (tokens.desc(), func.sum(_USAGE.c.requests).desc(), group_column)
        if query.by in _IN_TIME_ORDER:
            order = (group_column,)
        name = func.min(_ENDPOINTS.c.name) if query.by is UseGrouping.ENDPOINT else null()
        groups = (
            select(group_column.label("key"), name.label("name"), *sums)
            .select_from(usage_and_endpoints)
            .where(*conditions)
        )
        groups = groups.group_by(group_column).order_by(*order).limit(query.limit)

        def transact(conn: Connection) -> UseReport:
            rows = conn.execute(groups).all()
            return UseReport(
                groups=[UseGroup(key=row.key, name=row.name, sums=_sums_of(row)) for row in rows],
                total=_sums_of(conn.execute(total).one()),
            )

        return await self._db.run_read(transact)

    async def purge_usage(self, *, before_hour: int) -> int:
        old_rows = delete(_USAGE).where(_USAGE.c.hour < before_hour)
        return int(await self._db.run_write(lambda conn: conn.execute(old_rows).rowcount))


def _advance(conn: Connection, coordinator_id: str, after_number: int, last_number: int) -> None:
    is_at_position = (_POSITIONS.c.source == coordinator_id, _POSITIONS.c.last == after_number)
    if conn.execute(update(_POSITIONS).where(*is_at_position).values(last=last_number)).rowcount:
        return
    try:
        if after_number:
            raise StaleVersion(f"the use that {coordinator_id} reported after {after_number} was added meanwhile")
        conn.execute(insert(_POSITIONS), {"source": coordinator_id, "last": last_number})
    except IntegrityError:
        raise StaleVersion(f"the use that {coordinator_id} reported was added meanwhile") from None


def _add(conn: Connection, key: UseKey, sums: UseSums) -> None:
    row_id = uuid5(key.endpoint_id, "/".join(str(key_part) for key_part in key[1:]))
    increased_sums = {name: _USAGE.c[name] + value for name, value in asdict(sums).items()}
    if not conn.execute(update(_USAGE).where(_USAGE.c.id == row_id).values(increased_sums)).rowcount:
        conn.execute(insert(_USAGE), {"id": row_id, **key._asdict(), **asdict(sums)})


def _sums_of(row: Row[Any]) -> UseSums:
    return UseSums(**{name: int(row._mapping[name]) for name in _SUM_FIELDS})
