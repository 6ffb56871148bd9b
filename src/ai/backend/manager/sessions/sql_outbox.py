"""The outbox of events and webhooks, and the acknowledged observations, in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias

from sqlalchemy import Connection, delete, func, insert, select, update

from ai.backend.common.ids import AgentId
from ai.backend.infra.database import Database
from ai.backend.manager.sessions import tables
from ai.backend.manager.sessions.callbacks import Webhook, callback_body, owed_callbacks
from ai.backend.manager.sessions.changes import ObservationAck
from ai.backend.manager.sessions.events import Event, EventDraft
from ai.backend.manager.sessions.model import Session

SessionEvents: TypeAlias = tuple[Session, Sequence[EventDraft], datetime]
"""A session, its events, and their time."""


def insert_events(s: Connection, batch: Sequence[SessionEvents]) -> None:
    """Insert events in their order, and the webhooks that they cause, in the caller's transaction."""
    rows = [
        {
            "name": event.name,
            "session_id": event.session_id,
            "kernel_id": event.kernel_id,
            "access_key": session.access_key,
            "domain_name": session.domain_name,
            "group_id": session.group_id,
            "user_id": session.user_id,
            "at": at,
            "payload": dict(event.payload),
        }
        for session, events, at in batch
        for event in events
    ]
    if rows:
        s.execute(insert(tables.session_events), rows)
    webhooks = [
        {
            "session_id": session.id,
            "access_key": session.access_key,
            "url": session.callback_url,
            "body": callback_body(event, at),
            "attempts": 0,
            "due_at": at,
        }
        for session, events, at in batch
        for event in owed_callbacks(session, events)
    ]
    if webhooks:
        s.execute(insert(tables.session_callbacks), webhooks)


def acknowledge(s: Connection, ack: ObservationAck) -> None:
    """Record, in the caller's transaction, up to where the observations of an agent are applied."""
    s.execute(delete(tables.agent_acks).where(tables.agent_acks.c.agent_id == ack.agent_id))
    s.execute(insert(tables.agent_acks), {"agent_id": ack.agent_id, "epoch": ack.epoch, "seq": ack.seq})


class SqlOutbox:
    """Reads events, webhooks that are due, and acknowledged observations."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def acked(self, agent_id: AgentId, epoch: int) -> int:
        c = tables.agent_acks.c

        def work(s: Connection) -> int:
            query = select(c.seq).where(c.agent_id == agent_id, c.epoch == epoch)
            return s.execute(query).scalar_one_or_none() or 0

        return await self._db.run_read(work)

    async def events_after(self, after_id: int, *, limit: int = 1000) -> list[Event]:
        def work(s: Connection) -> list[Event]:
            c = tables.session_events.c
            rows = s.execute(select(tables.session_events).where(c.id > after_id).order_by(c.id).limit(limit))
            return [Event(**row._mapping) for row in rows]

        return await self._db.run_read(work)

    async def last_event_id(self) -> int:
        def work(s: Connection) -> int:
            return (s.execute(select(func.max(tables.session_events.c.id)))).scalar_one_or_none() or 0

        return await self._db.run_read(work)

    async def due_callbacks(self, now: datetime, *, limit: int) -> list[Webhook]:
        table, c = tables.session_callbacks, tables.session_callbacks.c
        first = select(func.min(c.id)).group_by(c.session_id)
        due = select(table).where(c.id.in_(first), c.due_at <= now).order_by(c.due_at, c.id).limit(limit)

        def work(s: Connection) -> list[Webhook]:
            return [Webhook(**row._mapping) for row in s.execute(due)]

        return await self._db.run_read(work)

    async def put_off_callback(self, callback_id: int, *, attempts: int, due_at: datetime) -> None:
        table = tables.session_callbacks

        def work(s: Connection) -> None:
            s.execute(update(table).where(table.c.id == callback_id).values(attempts=attempts, due_at=due_at))

        await self._db.run_write(work)

    async def drop_callback(self, callback_id: int) -> None:
        def work(s: Connection) -> None:
            s.execute(delete(tables.session_callbacks).where(tables.session_callbacks.c.id == callback_id))

        await self._db.run_write(work)
