"""Events, background tasks and the audit trail."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from ai.backend.common.ids import SessionId
from ai.backend.infra.bus import Bus
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.sessions.events import Event
from ai.backend.manager.sessions.lookup import SessionFinder
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.tasks.service import _RECHECK_S, _hint
from ai.backend.manager.topics import OUTBOX

log = logging.getLogger(__name__)

_PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events a client wants. ``session_ref`` None is every session that the caller sees.

    ``after_id`` is the client's Last-Event-ID; None starts with the events that follow now.
    """

    session_ref: str | None = None
    scope: Literal["*", "session", "kernel"] = "*"
    owner_access_key: str | None = None
    after_id: int | None = None


class EventService:
    """Reads the outbox; the bus only tells when to look."""

    def __init__(self, store: SessionStore, finder: SessionFinder, bus: Bus) -> None:
        self._store = store
        self._finder = finder
        self._bus = bus

    async def newest_id(self) -> int:
        """Of the last event that has happened: ``after_id`` for whoever wants to hear what comes."""
        return await self._store.last_event_id()

    async def subscribe(self, caller: Caller, wanted: EventFilter) -> AsyncIterator[Event]:
        """At least once, in order per session, for ever; the consumer ends it by closing the iterator.

        Raises:
            SessionNotFound: at the first step.
        """
        with self._bus.subscribe(OUTBOX, limit=1) as hints:
            after = wanted.after_id if wanted.after_id is not None else await self.newest_id()
            only: SessionId | None = None
            if wanted.session_ref is not None:
                session = await self._finder.one(caller, wanted.session_ref, owner_access_key=wanted.owner_access_key)
                only = session.id
            while True:
                events = await self._store.events_after(after, limit=_PAGE)
                for event in events:
                    after = event.id
                    if _is_wanted(caller, event, wanted, only):
                        yield event
                if len(events) < _PAGE:
                    await _hint(hints, _RECHECK_S)


def _is_wanted(caller: Caller, event: Event, wanted: EventFilter, only: SessionId | None) -> bool:
    if only is not None and event.session_id != only:
        return False
    if wanted.scope not in ("*", event.scope):
        return False
    if wanted.owner_access_key is not None and only is None and event.access_key != wanted.owner_access_key:
        return False
    is_own = event.user_id == caller.user_id
    return is_permitted(caller, Operation.SEE_SESSIONS, domain_name=event.domain_name, is_own=is_own)
