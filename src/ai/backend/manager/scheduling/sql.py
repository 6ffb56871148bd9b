"""Stores recent usage for fair share in SQL and in memory."""

from __future__ import annotations

from decimal import Decimal

from sqlalchemy import Column, Connection, String, Table, delete, insert, select

from ai.backend.common.slots import ResourceSlot
from ai.backend.infra.database import Database, JSONText, UTCDateTime
from ai.backend.infra.database.columns import required
from ai.backend.infra.database.prepared import Prepared, parameter
from ai.backend.manager.db import metadata
from ai.backend.manager.scheduling.store import ShareHistory

share_histories = Table(
    "share_histories",
    metadata,
    Column("resource_group", String(64), primary_key=True),
    required("used", JSONText),
    required("at", UTCDateTime),
)

_HISTORY_QUERY = Prepared(
    select(share_histories).where(share_histories.c.resource_group == parameter(share_histories.c.resource_group))
)


class SqlShareStore:
    """Implements :class:`ai.backend.manager.scheduling.store.ShareStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def history(self, resource_group: str) -> ShareHistory | None:
        row = await self._db.run_read(lambda conn: _HISTORY_QUERY.first(conn, {"resource_group": resource_group}))
        if row is None:
            return None
        # averages may be fractions of bytes
        used_slots = {
            scope: ResourceSlot({slot: Decimal(quantity) for slot, quantity in slots.items()})
            for scope, slots in row.used.items()
        }
        return ShareHistory(used=used_slots, at=row.at)

    async def put_history(self, resource_group: str, history: ShareHistory) -> None:
        row = {
            "resource_group": resource_group,
            "used": {scope: slots.to_json() for scope, slots in history.used.items()},
            "at": history.at,
        }

        def transact(conn: Connection) -> None:
            conn.execute(delete(share_histories).where(share_histories.c.resource_group == resource_group))
            conn.execute(insert(share_histories), row)

        await self._db.run_write(transact)
