"""Stores the activities of sessions in SQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Connection, ForeignKey, Table, insert, select, update

from ai.backend.common.ids import SessionId
from ai.backend.infra.database import GUID, Database, JSONText, UTCDateTime
from ai.backend.infra.database.batching import chunks
from ai.backend.infra.database.columns import required
from ai.backend.manager.db import metadata
from ai.backend.manager.idle.store import Activity
from ai.backend.manager.sessions.tables import sessions

activities = Table(
    "session_activities",
    metadata,
    Column("session_id", GUID, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("last_access", UTCDateTime),
    required("usage", JSONText),
)


class SqlActivityStore:
    """Implements :class:`ai.backend.manager.idle.store.ActivityStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def activities(self, session_ids: Collection[SessionId]) -> Mapping[SessionId, Activity]:
        def work(conn: Connection) -> dict[SessionId, Activity]:
            activities_by_session: dict[SessionId, Activity] = {}
            for chunk in chunks(session_ids):
                for row in conn.execute(select(activities).where(activities.c.session_id.in_(chunk))):
                    activities_by_session[row.session_id] = Activity(**row._mapping)
            return activities_by_session

        return await self._db.run_read(work)

    async def note_access(self, accesses: Mapping[SessionId, datetime]) -> None:
        await self._upsert("last_access", accesses)

    async def put_usage(self, usage: Mapping[SessionId, Mapping[str, Any]]) -> None:
        await self._upsert("usage", {session_id: dict(value) for session_id, value in usage.items()})

    async def _upsert(self, column: str, value_by_session: Mapping[SessionId, Any]) -> None:
        columns = activities.c

        def work(conn: Connection) -> None:
            for session_id, value in sorted(value_by_session.items()):
                # the parent's row makes the first writers of one session wait for each other
                session_lock = select(sessions.c.id).where(sessions.c.id == session_id).with_for_update(key_share=True)
                if conn.execute(session_lock).one_or_none() is None:
                    continue
                activity_query = select(activities).where(columns.session_id == session_id).with_for_update()
                row = conn.execute(activity_query).one_or_none()
                if row is None:
                    conn.execute(insert(activities), {"session_id": session_id, "usage": {}, column: value})
                elif column != "last_access" or row.last_access is None or row.last_access < value:
                    conn.execute(update(activities).where(columns.session_id == session_id).values({column: value}))

        if value_by_session:
            await self._db.run_write(work)
