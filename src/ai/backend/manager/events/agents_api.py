"""Changes of agents as Server-Sent Events, for those who see agents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from aiohttp import web
from msgspec import Meta

from ai.backend.infra.http.routes import Call, Nothing, Schema, route
from ai.backend.infra.http.streams import SseEvent, send_events
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.events.agent_changes import AgentChange, AgentChanges


class AgentEventsQuery(Schema, frozen=True, rename={"last_event_id": "lastEventId"}):
    """The query of a stream of agent changes; ``lastEventId`` replaces the header ``Last-Event-ID``.

    It is the id of the last event that the client has received, for clients that cannot set the header.
    """

    last_event_id: Annotated[str, Meta(max_length=64)] | None = None


class AgentEventsApi:
    """Streams changes of agents; a stream resumes after ``Last-Event-ID``."""

    def __init__(self, changes: AgentChanges) -> None:
        self._changes = changes

    @route("GET", "/events/agent", kind="stream", query=AgentEventsQuery)
    async def agent_events(self, call: Call[Nothing, AgentEventsQuery]) -> web.StreamResponse:
        """Stream which agents change, for superadmins and monitors.

        ``agent_changed`` has the id, ``status`` and ``schedulable`` of an agent, and in ``changed`` what of it has
        changed: ``status``, ``schedulable``, ``resource-group``, ``occupied-slots``, or ``report`` for its devices and
        all else that it reports. ``agents_reset`` says to read all agents: at the beginning, and where changes were
        missed.
        """
        require(caller_of(call), Operation.SEE_AGENTS)
        after_position = call.request.headers.get("Last-Event-ID") or call.query.last_event_id
        return await send_events(call.request, self._relay_changes(after_position))

    async def _relay_changes(self, after_position: str | None) -> AsyncIterator[SseEvent]:
        subscription = self._changes.subscribe(after_position)
        try:
            async for change in subscription:
                yield _event_of(change)
        finally:
            close_subscription = getattr(subscription, "aclose", None)
            if close_subscription is not None:
                await close_subscription()


def _event_of(change: AgentChange) -> SseEvent:
    if change.agent_id is None:
        return SseEvent("agents_reset", {}, change.position)
    data = {
        "agentId": change.agent_id,
        "status": change.status,
        "schedulable": change.schedulable,
        "changed": list(change.aspects),
    }
    return SseEvent("agent_changed", data, change.position)
