"""Events, webhooks, acknowledged observations and kernel logs in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias

from sqlalchemy import Connection, delete, func, insert, select, update

from ai.backend.common.ids import AgentId, KernelId
from ai.backend.infra.database import Database
from ai.backend.manager.sessions import tables
from ai.backend.manager.sessions.changes import Event, EventDraft, ObservationAck, Webhook, event_rows, webhook_rows
from ai.backend.manager.sessions.model import Session

SessionEvents: TypeAlias = tuple[Session, Sequence[EventDraft], datetime]
"""A session, its events, and their time."""


def insert_events(s: Connection, batch: Sequence[SessionEvents]) -> None:
    """Inserts events in their order, and the webhooks that they cause, in the caller's transaction."""
    for table, rows_of in ((tables.session_events, event_rows), (tables.session_callbacks, webhook_rows)):
        rows = [row for session_events in batch for row in rows_of(*session_events)]
        if rows:
            s.execute(insert(table), rows)


def acknowledge(s: Connection, ack: ObservationAck) -> None:
    """Records, in the caller's transaction, up to where the observations of an agent are applied."""
    s.execute(delete(tables.agent_acks).where(tables.agent_acks.c.agent_id == ack.agent_id))
    s.execute(insert(tables.agent_acks), {"agent_id": ack.agent_id, "epoch": ack.epoch, "seq": ack.seq})


class SqlOutbox:
    """Reads events and acknowledged observations, and stores webhooks and the tails of kernel logs."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def acked(self, agent_id: AgentId, epoch: int) -> int:
        c = tables.agent_acks.c
        query = select(c.seq).where(c.agent_id == agent_id, c.epoch == epoch)
        return await self._db.run_read(lambda s: s.execute(query).scalar_one_or_none() or 0)

    async def events_after(self, after_id: int, *, limit: int = 1000) -> list[Event]:
        table = tables.session_events
        query = select(table).where(table.c.id > after_id).order_by(table.c.id).limit(limit)
        return await self._db.run_read(lambda s: [Event(**row._mapping) for row in s.execute(query)])

    async def last_event_id(self) -> int:
        query = select(func.max(tables.session_events.c.id))
        return await self._db.run_read(lambda s: s.execute(query).scalar_one_or_none() or 0)

    async def due_callbacks(self, now: datetime, *, limit: int) -> list[Webhook]:
        c = tables.session_callbacks.c
        first = select(func.min(c.id)).group_by(c.session_id)
        due = select(tables.session_callbacks).where(c.id.in_(first), c.due_at <= now)
        query = due.order_by(c.due_at, c.id).limit(limit)
        return await self._db.run_read(lambda s: [Webhook(**row._mapping) for row in s.execute(query)])

    async def put_off_callback(self, callback_id: int, *, attempts: int, due_at: datetime) -> None:
        own = update(tables.session_callbacks).where(tables.session_callbacks.c.id == callback_id)
        await self._db.run_write(lambda s: s.execute(own.values(attempts=attempts, due_at=due_at)))

    async def drop_callback(self, callback_id: int) -> None:
        query = delete(tables.session_callbacks).where(tables.session_callbacks.c.id == callback_id)
        await self._db.run_write(lambda s: s.execute(query))

    async def put_log(self, kernel_id: KernelId, tail: bytes) -> None:
        def work(s: Connection) -> None:
            s.execute(delete(tables.kernel_logs).where(tables.kernel_logs.c.kernel_id == kernel_id))
            s.execute(insert(tables.kernel_logs), {"kernel_id": kernel_id, "tail": tail})

        await self._db.run_write(work)

    async def get_log(self, kernel_id: KernelId) -> bytes | None:
        query = select(tables.kernel_logs.c.tail).where(tables.kernel_logs.c.kernel_id == kernel_id)
        return await self._db.run_read(lambda s: s.execute(query).scalar_one_or_none())

    async def purge(self, *, before: datetime) -> int:
        def work(s: Connection) -> int:
            removed = s.execute(delete(tables.session_events).where(tables.session_events.c.at < before))
            stale = select(tables.kernels.c.id).where(tables.kernels.c.terminated_at < before)
            s.execute(delete(tables.kernel_logs).where(tables.kernel_logs.c.kernel_id.in_(stale)))
            return int(removed.rowcount)

        return await self._db.run_write(work)
