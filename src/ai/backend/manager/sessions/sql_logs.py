"""Logs of ended kernels in SQL, and the removal of old events and logs."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, delete, insert, select

from ai.backend.common.ids import KernelId
from ai.backend.infra.database import Database
from ai.backend.manager.sessions import tables


class SqlKernelLogs:
    """Stores the tails of kernel logs."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def put_log(self, kernel_id: KernelId, tail: bytes) -> None:
        def work(s: Connection) -> None:
            s.execute(delete(tables.kernel_logs).where(tables.kernel_logs.c.kernel_id == kernel_id))
            s.execute(insert(tables.kernel_logs), {"kernel_id": kernel_id, "tail": tail})

        await self._db.run_write(work)

    async def get_log(self, kernel_id: KernelId) -> bytes | None:
        def work(s: Connection) -> bytes | None:
            query = select(tables.kernel_logs.c.tail).where(tables.kernel_logs.c.kernel_id == kernel_id)
            return s.execute(query).scalar_one_or_none()

        return await self._db.run_read(work)

    async def purge(self, *, before: datetime) -> int:
        def work(s: Connection) -> int:
            removed = s.execute(delete(tables.session_events).where(tables.session_events.c.at < before))
            stale = select(tables.kernels.c.id).where(tables.kernels.c.terminated_at < before)
            s.execute(delete(tables.kernel_logs).where(tables.kernel_logs.c.kernel_id.in_(stale)))
            return int(removed.rowcount)

        return await self._db.run_write(work)
