"""The use of sessions, and reported errors, in SQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update

from ai.backend.common.ids import SessionId, UserId
from ai.backend.infra.database import Database
from ai.backend.infra.database.batching import chunks
from ai.backend.manager.adapters.db import session_default_tables as t
from ai.backend.manager.adapters.db.tables import sessions
from ai.backend.manager.model.activity import Activity
from ai.backend.manager.model.error_log import ErrorReport, KeptError
from ai.backend.manager.model.query import Page


class SqlActivityStore:
    """Implements :class:`ai.backend.manager.ports.activity_store.ActivityStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def activities(self, session_ids: Collection[SessionId]) -> Mapping[SessionId, Activity]:
        def work(s: Connection) -> dict[SessionId, Activity]:
            found: dict[SessionId, Activity] = {}
            for part in chunks(session_ids):
                for row in s.execute(select(t.activities).where(t.activities.c.session_id.in_(part))):
                    found[row.session_id] = Activity(**row._mapping)
            return found

        return await self._db.run_read(work)

    async def note_access(self, accesses: Mapping[SessionId, datetime]) -> None:
        await self._upsert("last_access", accesses)

    async def put_usage(self, usage: Mapping[SessionId, Mapping[str, Any]]) -> None:
        await self._upsert("usage", {session_id: dict(value) for session_id, value in usage.items()})

    async def _upsert(self, column: str, values: Mapping[SessionId, Any]) -> None:
        c = t.activities.c

        def work(s: Connection) -> None:
            for session_id, value in sorted(values.items()):
                # the parent's row makes the first writers of one session wait for each other
                there = select(sessions.c.id).where(sessions.c.id == session_id).with_for_update(key_share=True)
                if s.execute(there).one_or_none() is None:
                    continue
                known = s.execute(select(t.activities).where(c.session_id == session_id).with_for_update())
                row = known.one_or_none()
                if row is None:
                    s.execute(insert(t.activities), {"session_id": session_id, "usage": {}, column: value})
                elif column != "last_access" or row.last_access is None or row.last_access < value:
                    s.execute(update(t.activities).where(c.session_id == session_id).values({column: value}))

        if values:
            await self._db.run_write(work)


class SqlErrorLogStore:
    """Implements :class:`ai.backend.manager.ports.error_log_store.ErrorLogStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add_error(self, report: ErrorReport) -> int:
        def work(s: Connection) -> int:
            row = {**asdict(report), "is_read": False, "is_cleared": False}
            made = s.execute(insert(t.error_logs).values(row)).inserted_primary_key
            assert made is not None
            return int(made[0])

        return await self._db.run_write(work)

    async def errors(
        self,
        *,
        limit: int,
        offset: int,
        user_id: UserId | None = None,
        domain_name: str | None = None,
        mark_read: bool = False,
    ) -> Page[KeptError]:
        c = t.error_logs.c
        where = [c.is_cleared.is_(False), *_bounds(user_id, domain_name)]

        def work(s: Connection) -> Page[KeptError]:
            total = s.execute(select(func.count()).select_from(t.error_logs).where(*where)).scalar_one()
            page = select(t.error_logs).where(*where).order_by(c.id.desc()).limit(limit).offset(offset)
            found = []
            for row in s.execute(page):
                values = dict(row._mapping)
                number, is_read = values.pop("id"), values.pop("is_read")
                values.pop("is_cleared")
                found.append(KeptError(id=number, is_read=is_read, report=ErrorReport(**values)))
            if mark_read:
                s.execute(update(t.error_logs).where(c.id.in_([one.id for one in found])).values(is_read=True))
            return Page(items=found, total_count=total)

        return await (self._db.run_write(work) if mark_read else self._db.run_read(work))

    async def clear_error(
        self, error_id: int, *, user_id: UserId | None = None, domain_name: str | None = None
    ) -> bool:
        where = [t.error_logs.c.id == error_id, *_bounds(user_id, domain_name)]

        def work(s: Connection) -> bool:
            return bool(s.execute(update(t.error_logs).where(*where).values(is_cleared=True)).rowcount)

        return await self._db.run_write(work)

    async def purge_errors(self, *, before: datetime) -> None:
        def work(s: Connection) -> None:
            s.execute(delete(t.error_logs).where(t.error_logs.c.created_at < before))

        await self._db.run_write(work)


def _bounds(user_id: UserId | None, domain_name: str | None) -> list[ColumnElement[bool]]:
    c = t.error_logs.c
    found: list[ColumnElement[bool]] = []
    if user_id is not None:
        found.append(c.user_id == user_id)
    if domain_name is not None:
        found.append(c.domain_name == domain_name)
    return found
