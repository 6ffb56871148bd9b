"""Session events and background tasks as Server-Sent Events (spec 03-08, client wire contract 2.4)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal
from uuid import UUID

from aiohttp import web
from msgspec import Meta

from ai.backend.common.errors import NotFound
from ai.backend.common.ids import TaskId
from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.routes import Call, Nothing, Schema, route
from ai.backend.infra.http.streams import SseEvent, send_events
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.events.service import EventFilter, EventService
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.sessions.events import Event
from ai.backend.manager.sessions.service import SessionService
from ai.backend.manager.tasks.api import TaskEventsQuery, _told_task
from ai.backend.manager.tasks.service import TaskService

LAST_EVENTS = frozenset({"session_terminated", "session_cancelled"})
"""After one of these nothing more happens to a session."""

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
    """``sessionId`` or ``sessionName``, ``*`` for all; ``group`` by name; ``scope`` of events."""

    session_id: Ref | None = None
    session_name: Ref | None = None
    owner: Ref | None = None
    group: Ref = "*"
    scope: Literal["*", "session", "kernel", "session,kernel"] = "*"
    last_event_id: Ref | None = None


class EventsApi:
    """Event streams resume after ``Last-Event-ID``."""

    def __init__(
        self, sessions: SessionService, identity: IdentityService, events: EventService, tasks: TaskService
    ) -> None:
        self._sessions = sessions
        self._identity = identity
        self._events = events
        self._tasks = tasks

    @route("GET", "/events/session", kind="stream", query=SessionEventsQuery)
    async def session_events(self, call: Call[Nothing, SessionEventsQuery]) -> web.StreamResponse:
        """Life-cycle events of one session, or of all that the caller sees; ``session_device_*`` tell of devices."""
        caller, query = caller_of(call), call.query
        ref = _either(query.session_id, query.session_name, "sessionId", "sessionName") or "*"
        owner = _either(query.owner, call.owner_access_key, "ownerAccessKey", "owner_access_key")
        groups = await self._group_ids(caller, query.group)
        if ref != "*":
            # An id from here on: the name may change or come again while the stream is open.
            ref = str((await self._sessions.get(caller, ref, owner_access_key=owner)).id)
        seen = _last_event_id(call.request.headers.get("Last-Event-ID") or query.last_event_id)
        wanted = EventFilter(
            session_ref=None if ref == "*" else ref,
            scope="*" if query.scope == "session,kernel" else query.scope,
            owner_access_key=owner,
            # Before the head goes out: what the client does once it has that is told, however slow the rest is.
            after_id=await self._events.newest_id() if seen is None else seen,
        )
        return await send_events(call.request, self._relay(caller, wanted, groups, resumes=seen is not None))

    async def _relay(
        self, caller: Caller, wanted: EventFilter, groups: set[str] | None, *, resumes: bool
    ) -> AsyncIterator[SseEvent]:
        single = wanted.session_ref
        if single is not None and not resumes:
            session = await self._sessions.get(caller, single, owner_access_key=wanted.owner_access_key)
            if session.status.is_final:
                return
        source = self._events.subscribe(caller, wanted)
        try:
            async for event in source:
                if groups is None or str(event.group_id) in groups:
                    yield _told(event)
                if single is not None and event.name in LAST_EVENTS:
                    return
        finally:
            aclose = getattr(source, "aclose", None)
            if aclose is not None:
                await aclose()

    async def _group_ids(self, caller: Caller, name: str) -> set[str] | None:
        if name == "*":
            return None
        groups = await self._identity.groups(caller, name=name)
        if not groups:
            raise NotFound("There is no such group.", data={"group": name})
        return {str(group.id) for group in groups}

    @route("GET", "/events/background-task", kind="stream", query=TaskEventsQuery)
    async def task_events(self, call: Call[Nothing, TaskEventsQuery]) -> web.StreamResponse:
        """Progress and end of a background task; then ``server_close``."""
        text = _either(call.query.task_id, call.query.camel, "task_id", "taskId")
        if text is None:
            raise refuse({"task_id": "required"})
        try:
            task_id = TaskId(UUID(text))
        except ValueError:
            raise refuse({"task_id": "not a UUID"}) from None
        caller = caller_of(call)
        await self._tasks.get(caller, task_id)
        return await send_events(call.request, self._progress(caller, task_id))

    async def _progress(self, caller: Caller, task_id: TaskId) -> AsyncIterator[SseEvent]:
        async for task in self._tasks.subscribe(caller, task_id):
            for event in _told_task(task):
                yield event


def _told(event: Event) -> SseEvent:
    return SseEvent(event.name, event.payload, str(event.id))


def _either(one: str | None, other: str | None, name: str, other_name: str) -> str | None:
    if one and other and one != other:
        raise refuse({other_name: f"contradicts {name}"})
    return one or other or None


def _last_event_id(text: str | None) -> int | None:
    if text is None or text == "":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise refuse({"Last-Event-ID": "not an event id"})
    return int(text)
