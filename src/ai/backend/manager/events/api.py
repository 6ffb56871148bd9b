"""Session events as Server-Sent Events (spec 03-08, client wire contract 2.4)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal

from aiohttp import web
from msgspec import Meta

from ai.backend.common.errors import NotFound
from ai.backend.infra.http.decode import either, refuse
from ai.backend.infra.http.routes import Call, Nothing, OwnerKey, Schema, route
from ai.backend.infra.http.streams import SseEvent, send_events
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.access.requests import OBJECT_PROBLEMS, caller_of
from ai.backend.manager.events.service import EventFilter, EventService
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.sessions.service import SessionService

FINAL_EVENTS = frozenset({"session_terminated", "session_cancelled"})
"""The last events of a session."""

FROM_NOW_ON = "now"
"""A last event id of clients that know none: the stream then begins with its position, to resume after."""
POSITION_EVENT = "stream_position"

Ref = Annotated[str, Meta(max_length=64)]


class SessionEventsQuery(
    Schema,
    frozen=True,
    rename={
        "session_id": "sessionId",
        "session_name": "sessionName",
        "owner": "ownerAccessKey",
        "last_event_id": "lastEventId",
    },
):
    """Selects events by ``sessionId`` or ``sessionName`` (``*`` for all), name of the ``group`` and ``scope``.

    ``lastEventId`` is the id of the last event that is known, where the header cannot be set, or ``now``: the stream
    then begins with ``stream_position``, an event without data whose id is to resume after until another event came.
    """

    session_id: Ref | None = None
    session_name: Ref | None = None
    owner: Ref | None = None
    group: Ref = "*"
    scope: Literal["*", "session", "kernel", "session,kernel"] = "*"
    last_event_id: Annotated[str, Meta(pattern="^(now|[0-9]{0,18})$")] | None = None


class EventsApi:
    """Streams the events of sessions; a stream resumes after ``Last-Event-ID``."""

    owner_key = OwnerKey.NAMED
    problems = OBJECT_PROBLEMS

    def __init__(self, sessions: SessionService, identity: IdentityService, events: EventService) -> None:
        self._sessions = sessions
        self._identity = identity
        self._events = events

    @route("GET", "/events/session", kind="stream", query=SessionEventsQuery)
    async def session_events(self, call: Call[Nothing, SessionEventsQuery]) -> web.StreamResponse:
        """Stream the events of one session, or of all that the caller sees; ``session_device_*`` are about devices."""
        caller, query = caller_of(call), call.query
        ref = either(query.session_id, query.session_name, "sessionId", "sessionName") or "*"
        owner = either(query.owner, call.owner_access_key, "ownerAccessKey", "owner_access_key")
        await self._identity.resolve_owner(caller, owner)  # refuses a keypair that the caller may not act for
        groups = await self._group_ids(caller, query.group)
        if ref != "*":
            # From now on the id: while the stream is open, the name may change or be used again.
            ref = str((await self._sessions.get(caller, ref, owner_access_key=owner)).id)
        last_id_text = call.request.headers.get("Last-Event-ID") or query.last_event_id
        last_event_id = _last_event_id(last_id_text)
        event_filter = EventFilter(
            session_ref=None if ref == "*" else ref,
            scope="*" if query.scope == "session,kernel" else query.scope,
            owner_access_key=owner,
            # Read before the response head is sent: the stream has all events that follow from what the client
            # does once it has the head.
            after_id=await self._events.newest_id() if last_event_id is None else last_event_id,
        )
        events = self._relay_events(
            caller,
            event_filter,
            groups,
            resumes=last_event_id is not None,
            shows_position=last_id_text == FROM_NOW_ON,
        )
        return await send_events(call.request, events)

    async def _relay_events(
        self,
        caller: Caller,
        event_filter: EventFilter,
        groups: set[str] | None,
        *,
        resumes: bool,
        shows_position: bool,
    ) -> AsyncIterator[SseEvent]:
        if shows_position:
            yield SseEvent(POSITION_EVENT, {}, str(event_filter.after_id))
        only_session_ref = event_filter.session_ref
        if only_session_ref is not None and not resumes:
            session = await self._sessions.get(caller, only_session_ref, owner_access_key=event_filter.owner_access_key)
            if session.status.is_final:
                return
        subscription = self._events.subscribe(caller, event_filter)
        sees_agents = is_permitted(caller, Operation.SEE_AGENTS)
        try:
            async for event in subscription:
                if groups is None or str(event.group_id) in groups:
                    hidden_fields = {} if sees_agents or "agentId" not in event.payload else {"agentId": None}
                    yield SseEvent(event.name, {**event.payload, **hidden_fields}, str(event.id))
                if only_session_ref is not None and event.name in FINAL_EVENTS:
                    return
        finally:
            close_subscription = getattr(subscription, "aclose", None)
            if close_subscription is not None:
                await close_subscription()

    async def _group_ids(self, caller: Caller, name: str) -> set[str] | None:
        if name == "*":
            return None
        groups = await self._identity.groups(caller, name=name)
        if not groups:
            raise NotFound("There is no such group.", data={"group": name})
        return {str(group.id) for group in groups}


def _last_event_id(id_text: str | None) -> int | None:
    if id_text is None or id_text in ("", FROM_NOW_ON):
        return None
    if not id_text.isascii() or not id_text.isdigit() or len(id_text) > 18:
        raise refuse({"Last-Event-ID": "not an event id"})
    return int(id_text)
