"""Stores events, webhooks, acknowledged observations and kernel logs in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias

from sqlalchemy import Connection, delete, func, insert, select, update

from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.infra.database import Database
from ai.backend.infra.database.prepared import Prepared, insertion, parameter, updating
from ai.backend.manager.sessions import tables
from ai.backend.manager.sessions.changes import Event, EventDraft, ObservationAck, Webhook, event_rows, webhook_rows
from ai.backend.manager.sessions.model import Session

SessionEvents: TypeAlias = tuple[Session, Sequence[EventDraft], datetime]
"""A session, its events, and their time."""

_ACKS, _EVENTS = tables.agent_acks.c, tables.session_events.c
_SELECT_ACK = Prepared(select(tables.agent_acks).where(_ACKS.agent_id == parameter(_ACKS.agent_id)))
_EVENTS_AFTER = Prepared(
    select(tables.session_events)
    .where(_EVENTS.id > parameter(_EVENTS.id))
    .order_by(_EVENTS.id)
    .limit(parameter(_EVENTS.id, "limit"))
)


def insert_events(conn: Connection, batch: Sequence[SessionEvents]) -> None:
    """Inserts events in their order, and the webhooks that they cause, in the caller's transaction."""
    for table, rows_of in ((tables.session_events, event_rows), (tables.session_callbacks, webhook_rows)):
        rows = [row for session_events in batch for row in rows_of(*session_events)]
        if rows:
            insertion(table, tuple(rows[0])).execute(conn, *rows)


def acknowledge(conn: Connection, ack: ObservationAck) -> None:
    """Stores, in the caller's transaction, the epoch and number up to which an agent's observations are applied."""
    statement = updating(tables.agent_acks, ("agent_id",), ("epoch", "seq"))
    new_values = {"agent_id": ack.agent_id, "new_epoch": ack.epoch, "new_seq": ack.seq}
    if statement.execute(conn, new_values) == 0:
        insertion(tables.agent_acks).execute(conn, {"agent_id": ack.agent_id, "epoch": ack.epoch, "seq": ack.seq})


class SqlOutbox:
    """Reads events and acknowledged observations, and stores webhooks and the tails of kernel logs."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def acked(self, agent_id: AgentId) -> ObservationAck | None:
        rows = await self._db.fetch(_SELECT_ACK, {"agent_id": agent_id})
        return ObservationAck(**rows[0]._mapping) if rows else None

    async def events_after(self, after_id: int, *, limit: int = 1000) -> list[Event]:
        rows = await self._db.fetch(_EVENTS_AFTER, {"id": after_id, "limit": limit})
        return [Event(**row._mapping) for row in rows]

    async def events_of(self, session_id: SessionId, *, limit: int) -> list[Event]:
        newest_events = (
            select(tables.session_events).where(_EVENTS.session_id == session_id).order_by(_EVENTS.id.desc())
        )
        rows = await self._db.run_read(lambda conn: conn.execute(newest_events.limit(limit)).all())
        return [Event(**row._mapping) for row in reversed(rows)]

    async def last_event_id(self) -> int:
        query = select(func.max(tables.session_events.c.id))
        return await self._db.run_read(lambda conn: conn.execute(query).scalar_one_or_none() or 0)

    async def due_callbacks(self, now: datetime, *, limit: int) -> list[Webhook]:
        cols = tables.session_callbacks.c
        first_ids = select(func.min(cols.id)).group_by(cols.session_id)
        due_webhooks = select(tables.session_callbacks).where(cols.id.in_(first_ids), cols.due_at <= now)
        query = due_webhooks.order_by(cols.due_at, cols.id).limit(limit)
        return await self._db.run_read(lambda conn: [Webhook(**row._mapping) for row in conn.execute(query)])

    async def put_off_callback(self, callback_id: int, *, attempts: int, due_at: datetime) -> None:
        callback_update = update(tables.session_callbacks).where(tables.session_callbacks.c.id == callback_id)
        await self._db.run_write(lambda conn: conn.execute(callback_update.values(attempts=attempts, due_at=due_at)))

    async def drop_callback(self, callback_id: int) -> None:
        query = delete(tables.session_callbacks).where(tables.session_callbacks.c.id == callback_id)
        await self._db.run_write(lambda conn: conn.execute(query))

    async def put_log(self, kernel_id: KernelId, tail: bytes) -> None:
        def transact(conn: Connection) -> None:
            conn.execute(delete(tables.kernel_logs).where(tables.kernel_logs.c.kernel_id == kernel_id))
            conn.execute(insert(tables.kernel_logs), {"kernel_id": kernel_id, "tail": tail})

        await self._db.run_write(transact)

    async def get_log(self, kernel_id: KernelId) -> bytes | None:
        query = select(tables.kernel_logs.c.tail).where(tables.kernel_logs.c.kernel_id == kernel_id)
        return await self._db.run_read(lambda conn: conn.execute(query).scalar_one_or_none())

    async def purge(self, *, before: datetime) -> int:
        def transact(conn: Connection) -> int:
            removed_events = conn.execute(delete(tables.session_events).where(tables.session_events.c.at < before))
            stale_kernel_ids = select(tables.kernels.c.id).where(tables.kernels.c.terminated_at < before)
            conn.execute(delete(tables.kernel_logs).where(tables.kernel_logs.c.kernel_id.in_(stale_kernel_ids)))
            return int(removed_events.rowcount)

        return await self._db.run_write(transact)
