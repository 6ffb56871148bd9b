"""Stores the audit trail and reported errors in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, delete, func, insert, or_, select, update

from ai.backend.common.ids import UserId
from ai.backend.infra.database import Database
from ai.backend.infra.database.prepared import insertion
from ai.backend.infra.database.rows import row_of
from ai.backend.manager.logs import tables
from ai.backend.manager.logs.model import (
    SUCCESSFUL_OUTCOMES,
    AuditQuery,
    AuditRecord,
    ErrorReport,
    StoredAuditRecord,
    StoredError,
)
from ai.backend.manager.query.model import Page

_INSERT_RECORD = insertion(tables.audit_logs, tuple(field for field in AuditRecord.__struct_fields__))
_REPORT_FIELDS = tuple(field for field in ErrorReport.__struct_fields__)


class SqlAuditStore:
    """Implements :class:`ai.backend.manager.logs.store.AuditStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def append(self, records: Sequence[AuditRecord]) -> None:
        if records:
            rows = [row_of(record) for record in records]
            await self._db.run_write(lambda s: _INSERT_RECORD.execute(s, *rows))

    async def recent(self, limit: int) -> list[AuditRecord]:
        columns = [tables.audit_logs.c[name] for name in AuditRecord.__struct_fields__]
        rows = await self._db.fetch(select(*columns).order_by(tables.audit_logs.c.id.desc()).limit(limit))
        return [AuditRecord(**row._mapping) for row in rows]

    async def records(self, query: AuditQuery) -> list[StoredAuditRecord]:
        columns, names = tables.audit_logs.c, list(AuditRecord.__struct_fields__)
        statement = select(columns.id, *(columns[name] for name in names))
        if query.before is not None:
            statement = statement.where(columns.id < query.before)
        if query.user_id is not None:
            statement = statement.where(columns.user_id == query.user_id)
        if query.text is not None:
            matches_operation = columns.operation.contains(query.text, autoescape=True)
            statement = statement.where(
                or_(matches_operation, columns.object_id == query.text, columns.request_id == query.text)
            )
        if query.only_refused:
            statement = statement.where(columns.outcome.not_in(SUCCESSFUL_OUTCOMES))
        rows = await self._db.fetch(statement.order_by(columns.id.desc()).limit(query.limit))
        return [
            StoredAuditRecord(id=row.id, record=AuditRecord(**{name: row._mapping[name] for name in names}))
            for row in rows
        ]


class SqlErrorLogStore:
    """Implements :class:`ai.backend.manager.logs.store.ErrorLogStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add_error(self, report: ErrorReport, *, max_count: int) -> int:
        columns = tables.error_logs.c
        is_of_user = columns.user_id == report.user_id
        oldest_kept_id = select(columns.id).where(is_of_user).order_by(columns.id.desc()).offset(max_count - 1).limit(1)

        def work(s: Connection) -> int:
            row = {**row_of(report), "is_read": False, "is_cleared": False}
            key = s.execute(insert(tables.error_logs).values(row)).inserted_primary_key
            assert key is not None
            s.execute(delete(tables.error_logs).where(is_of_user, columns.id < oldest_kept_id.scalar_subquery()))
            return int(key[0])

        return await self._db.run_write(work)

    async def errors(
        self,
        *,
        limit: int,
        offset: int,
        user_id: UserId | None = None,
        domain_name: str | None = None,
        mark_read: bool = False,
    ) -> Page[StoredError]:
        columns = tables.error_logs.c
        clauses = [columns.is_cleared.is_(False), *_filter_clauses(user_id, domain_name)]

        def work(s: Connection) -> Page[StoredError]:
            total = s.execute(select(func.count()).select_from(tables.error_logs).where(*clauses)).scalar_one()
            page = select(tables.error_logs).where(*clauses).order_by(columns.id.desc()).limit(limit).offset(offset)
            errors = [
                StoredError(
                    id=row.id,
                    is_read=row.is_read,
                    report=ErrorReport(**{field: row._mapping[field] for field in _REPORT_FIELDS}),
                )
                for row in s.execute(page)
            ]
            if mark_read:
                s.execute(
                    update(tables.error_logs).where(columns.id.in_([error.id for error in errors])).values(is_read=True)
                )
            return Page(items=errors, total_count=total)

        return await (self._db.run_write(work) if mark_read else self._db.run_read(work))

    async def clear_error(
        self, error_id: int, *, user_id: UserId | None = None, domain_name: str | None = None
    ) -> bool:
        clauses = [tables.error_logs.c.id == error_id, *_filter_clauses(user_id, domain_name)]
        return bool(await self._db.execute(update(tables.error_logs).where(*clauses).values(is_cleared=True)))

    async def purge_errors(self, *, before: datetime) -> None:
        await self._db.execute(delete(tables.error_logs).where(tables.error_logs.c.created_at < before))


def _filter_clauses(user_id: UserId | None, domain_name: str | None) -> list[ColumnElement[bool]]:
    columns = tables.error_logs.c
    filters = ((columns.user_id, user_id), (columns.domain_name, domain_name))
    return [column == value for column, value in filters if value is not None]
