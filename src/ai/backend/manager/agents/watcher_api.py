"""REST routes of the watchers of agents."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from ai.backend.infra.http.routes import Call, Nothing, Schema, route
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.agents.watcher import WatcherService

AgentName = Annotated[str, Meta(min_length=1, max_length=64)]


class WatcherBody(Schema, frozen=True):
    agent_id: AgentName


class WatchersApi:
    """Routes for superadmins."""

    def __init__(self, watchers: WatcherService) -> None:
        self._watchers = watchers

    @route("GET", "/resource/watcher", query=WatcherBody)
    async def status(self, call: Call[Nothing, WatcherBody]) -> dict[str, Any]:
        """Return the status of an agent from its watcher."""
        return dict(await self._watchers.status(caller_of(call), call.query.agent_id))

    @route("POST", "/resource/watcher/agent/start", body=WatcherBody)
    @route("POST", "/resource/watcher/agent/stop", body=WatcherBody)
    @route("POST", "/resource/watcher/agent/restart", body=WatcherBody)
    async def act(self, call: Call[WatcherBody]) -> dict[str, Any]:
        """Start, stop or restart an agent; its sessions go on."""
        action = call.endpoint.path.rpartition("/")[2]
        return dict(await self._watchers.act(caller_of(call), call.body.agent_id, action))
