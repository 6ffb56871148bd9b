"""Recent usage in SQL."""

from __future__ import annotations

from decimal import Decimal

from sqlalchemy import Connection, delete, insert, select

from ai.backend.common.slots import ResourceSlot
from ai.backend.infra.database import Database
from ai.backend.manager.scheduling.model import ShareHistory
from ai.backend.manager.scheduling.tables import share_histories


class SqlShareStore:
    """Implements :class:`ai.backend.manager.scheduling.store.ShareStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def history(self, resource_group: str) -> ShareHistory | None:
        def work(s: Connection) -> ShareHistory | None:
            query = select(share_histories).where(share_histories.c.resource_group == resource_group)
            row = s.execute(query).one_or_none()
            if row is None:
                return None
            # averages may be fractions of bytes
            used = {
                scope: ResourceSlot({slot: Decimal(quantity) for slot, quantity in slots.items()})
                for scope, slots in row.used.items()
            }
            return ShareHistory(used=used, at=row.at)

        return await self._db.run_read(work)

    async def put_history(self, resource_group: str, history: ShareHistory) -> None:
        row = {
            "resource_group": resource_group,
            "used": {scope: slots.to_json() for scope, slots in history.used.items()},
            "at": history.at,
        }

        def work(s: Connection) -> None:
            s.execute(delete(share_histories).where(share_histories.c.resource_group == resource_group))
            s.execute(insert(share_histories), row)

        await self._db.run_write(work)
