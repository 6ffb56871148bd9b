"""The outbox of events and the acknowledged observations, as steps of somebody's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, delete, func, insert, select

from ai.backend.manager.sessions import tables
from ai.backend.manager.sessions.callbacks import Webhook, callback_body, owed_callbacks
from ai.backend.manager.sessions.changes import ObservationAck
from ai.backend.manager.sessions.events import Event, EventDraft
from ai.backend.manager.sessions.model import Session

Told = tuple[Session, Sequence[EventDraft], datetime]
"""A session, what is told of it, and when that happened."""


def insert_events(s: Connection, told: Sequence[Told]) -> None:
    """Note events in the order in which they are given, and the callbacks that they cause."""
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
        for session, events, at in told
        for event in events
    ]
    if rows:
        s.execute(insert(tables.session_events), rows)
    owed = [
        {
            "session_id": session.id,
            "access_key": session.access_key,
            "url": session.callback_url,
            "body": callback_body(event, at),
            "attempts": 0,
            "due_at": at,
        }
        for session, events, at in told
        for event in owed_callbacks(session, events)
    ]
    if owed:
        s.execute(insert(tables.session_callbacks), owed)


def read_events(s: Connection, after_id: int, limit: int) -> list[Event]:
    c = tables.session_events.c
    rows = s.execute(select(tables.session_events).where(c.id > after_id).order_by(c.id).limit(limit))
    return [Event(**row._mapping) for row in rows]


def read_due_callbacks(s: Connection, now: datetime, limit: int) -> list[Webhook]:
    c = tables.session_callbacks.c
    first = select(func.min(c.id)).group_by(c.session_id)
    due = select(tables.session_callbacks).where(c.id.in_(first), c.due_at <= now).order_by(c.due_at, c.id).limit(limit)
    return [Webhook(**row._mapping) for row in s.execute(due)]


def acknowledge(s: Connection, ack: ObservationAck) -> None:
    s.execute(delete(tables.agent_acks).where(tables.agent_acks.c.agent_id == ack.agent_id))
    s.execute(insert(tables.agent_acks), {"agent_id": ack.agent_id, "epoch": ack.epoch, "seq": ack.seq})
