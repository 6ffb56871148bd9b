"""Selects and deletes old history in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Float,
    Integer,
    Select,
    Text,
    delete,
    exists,
    func,
    select,
    type_coerce,
)

from ai.backend.common.states import FINAL_SESSION_STATUSES
from ai.backend.infra.database import Database, UTCDateTime
from ai.backend.manager.logs.tables import audit_logs
from ai.backend.manager.maintenance.store import Columns, HistoryKind, Rows
from ai.backend.manager.sessions.tables import claim_spans, kernels, session_dependencies, session_events, sessions

_SECRET_COLUMNS = frozenset(
    {"environ", "sealed_environ", "bootstrap_script", "callback_url", "network", "role_options"}
)
"""Columns that may hold secrets or keys of networks, and are therefore never archived."""
_ARCHIVED_COLUMNS: Mapping[str, Sequence[Column[Any]]] = {
    table.name: [column for column in table.c if column.name not in _SECRET_COLUMNS]
    for table in (sessions, kernels, session_events, audit_logs, claim_spans)
}
_PYTHON_TYPES: Mapping[type, type] = {UTCDateTime: datetime, Boolean: bool, Integer: int, Float: float}
"""Types of columns whose values are archived as values, not as the stored text."""
_OTHER_SESSIONS = sessions.alias("others")


def _has_ended(row: Any, before: datetime) -> Any:
    return row.status.in_(FINAL_SESSION_STATUSES) & (func.coalesce(row.terminated_at, row.created_at) < before)


class SqlHistoryStore:
    """Implements :class:`ai.backend.manager.maintenance.history.HistoryStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    @property
    def columns(self) -> Columns:
        return {
            table: {column.name: _python_type(column) for column in columns}
            for table, columns in _ARCHIVED_COLUMNS.items()
        }

    async def expired_ids(self, kind: HistoryKind, *, before: datetime, limit: int) -> Sequence[str]:
        query_of_kind = {
            HistoryKind.SESSIONS: _expired_sessions,
            HistoryKind.AUDIT: _expired_records,
            HistoryKind.CLAIM_SPANS: _expired_spans,
        }
        return [str(row.id) for row in await self._db.fetch(query_of_kind[kind](before).limit(limit))]

    async def rows(self, kind: HistoryKind, ids: Sequence[str]) -> Mapping[str, Rows]:
        def read(conn: Connection, table: Any, column: Any) -> Rows:
            query = select(*map(_archived_expression, _ARCHIVED_COLUMNS[table.name])).where(
                column.in_(_record_keys(kind, ids))
            )
            return [dict(row._mapping) for row in conn.execute(query)]

        sources_of_kind: Mapping[HistoryKind, Sequence[tuple[Any, Any]]] = {
            HistoryKind.SESSIONS: (
                (sessions, sessions.c.id),
                (kernels, kernels.c.session_id),
                (session_events, session_events.c.session_id),
            ),
            HistoryKind.AUDIT: ((audit_logs, audit_logs.c.id),),
            HistoryKind.CLAIM_SPANS: ((claim_spans, claim_spans.c.id),),
        }
        return await self._db.run_read(
            lambda conn: {table.name: read(conn, table, column) for table, column in sources_of_kind[kind]}
        )

    async def remove(self, kind: HistoryKind, ids: Sequence[str]) -> Mapping[str, int]:
        record_keys = _record_keys(kind, ids)
        has_final_status = sessions.c.status.in_(FINAL_SESSION_STATUSES)
        deletions = {
            HistoryKind.SESSIONS: {
                "events": delete(session_events).where(session_events.c.session_id.in_(record_keys)),
                "sessions": delete(sessions).where(sessions.c.id.in_(record_keys), has_final_status),
            },
            HistoryKind.AUDIT: {"records": delete(audit_logs).where(audit_logs.c.id.in_(record_keys))},
            HistoryKind.CLAIM_SPANS: {"claim spans": delete(claim_spans).where(claim_spans.c.id.in_(record_keys))},
        }
        return await self._db.run_write(
            lambda conn: {name: conn.execute(deletion).rowcount for name, deletion in deletions[kind].items()}
        )


def _python_type(column: Column[Any]) -> type:
    return next(
        (python_type for column_type, python_type in _PYTHON_TYPES.items() if isinstance(column.type, column_type)), str
    )


def _archived_expression(column: Column[Any]) -> Any:
    return column if _python_type(column) is not str else type_coerce(column, Text).label(column.name)


def _record_keys(kind: HistoryKind, ids: Sequence[str]) -> Sequence[Any]:
    return list(ids) if kind is HistoryKind.SESSIONS else [int(record_id) for record_id in ids]


def _expired_sessions(before: datetime) -> Select[Any]:
    """Selects the ids of the oldest sessions that ended before a time.

    Sessions on which a live session depends, or whose array has sessions that had not ended by then, are left out. The
    index of creations finds the oldest; those that have not ended are few beside the ended ones.
    """
    columns, other_columns = sessions.c, _OTHER_SESSIONS.c
    is_dependency_of_live = exists().where(
        session_dependencies.c.depends_on == columns.id,
        session_dependencies.c.session_id == other_columns.id,
        other_columns.status.not_in(FINAL_SESSION_STATUSES),
    )
    is_of_younger_array = exists().where(other_columns.array_id == columns.array_id, ~_has_ended(other_columns, before))
    return (
        select(columns.id)
        .where(columns.created_at < before, _has_ended(columns, before), ~is_dependency_of_live, ~is_of_younger_array)
        .order_by(columns.created_at, columns.id)
    )


def _expired_records(before: datetime) -> Select[Any]:
    return select(audit_logs.c.id).where(audit_logs.c.at < before).order_by(audit_logs.c.id)


def _expired_spans(before: datetime) -> Select[Any]:
    ended_at = claim_spans.c.terminated_at
    return select(claim_spans.c.id).where(ended_at < before).order_by(ended_at, claim_spans.c.id)
