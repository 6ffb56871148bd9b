"""Delivers session events to subscribers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal

import msgspec

from ai.backend.common.ids import SessionId
from ai.backend.infra.bus import Bus
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.sessions.changes import Event
from ai.backend.manager.sessions.lookup import SessionFinder
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.tasks.service import RECHECK_S, wait_for_hint
from ai.backend.manager.topics import OUTBOX

_PAGE_EVENTS = 500


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the events that a subscriber gets.

    ``session_ref`` None selects all sessions that the caller sees. ``after_id`` is the client's Last-Event-ID; None
    selects the events from now on.
    """

    session_ref: str | None = None
    scope: Literal["*", "session", "kernel"] = "*"
    owner_access_key: str | None = None
    after_id: int | None = None


class EventService:
    """Reads events from the outbox, when the bus signals that there are new ones."""

    def __init__(self, store: SessionStore, finder: SessionFinder, bus: Bus) -> None:
        self._store = store
        self._finder = finder
        self._bus = bus

    async def newest_id(self) -> int:
        """Returns the id of the newest stored event; an ``after_id`` of this value selects all later events."""
        return await self._store.last_event_id()

    async def subscribe(self, caller: Caller, event_filter: EventFilter) -> AsyncIterator[Event]:
        """Yields every matching event at least once, in order per session, until the iterator is closed. Raises
        SessionNotFound at the first step."""
        with self._bus.subscribe(OUTBOX, limit=1) as subscription:
            last_event_id = event_filter.after_id if event_filter.after_id is not None else await self.newest_id()
            only_session_id: SessionId | None = None
            if event_filter.session_ref is not None:
                session = await self._finder.one(
                    caller, event_filter.session_ref, owner_access_key=event_filter.owner_access_key
                )
                only_session_id = session.id
            while True:
                events = await self._store.events_after(last_event_id, limit=_PAGE_EVENTS)
                for event in events:
                    last_event_id = event.id
                    if _is_selected(caller, event, event_filter, only_session_id):
                        yield event
                if len(events) < _PAGE_EVENTS:
                    await wait_for_hint(subscription, RECHECK_S)


def _is_selected(caller: Caller, event: Event, event_filter: EventFilter, only_session_id: SessionId | None) -> bool:
    if only_session_id is not None and event.session_id != only_session_id:
        return False
    if event_filter.scope not in ("*", event.scope):
        return False
    if (
        event_filter.owner_access_key is not None
        and only_session_id is None
        and event.access_key != event_filter.owner_access_key
    ):
        return False
    is_own_session = event.user_id == caller.user_id
    return is_permitted(caller, Operation.SEE_SESSIONS, domain_name=event.domain_name, is_own=is_own_session)
