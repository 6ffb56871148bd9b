"""REST routes that dump the scheduler's input and replay it by another policy, for superadmins."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from ai.backend.common.errors import Forbidden, NotFound
from ai.backend.infra.http.fields import Name
from ai.backend.infra.http.routes import Call, Nothing, Schema, route
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.scheduling.model import ReplayView
from ai.backend.manager.scheduling.replay import Replays


class DumpQuery(Schema, frozen=True):
    scaling_group: Name


class ReplayQuery(Schema, frozen=True):
    """The query of a replay: the resource group, and the other policy as ``order`` and ``placement``.

    ``order`` and ``placement`` are those of the resource group where they are not given.
    """

    scaling_group: Name
    order: Name | None = None
    placement: Name | None = None


class ReplayApi:
    """Routes of dumps and replays."""

    problems = (Forbidden, NotFound)

    def __init__(self, replays: Replays) -> None:
        self._replays = replays

    @route("GET", "/scheduling/dump", query=DumpQuery, reply=dict[str, Any])
    async def dump(self, call: Call[Nothing, DumpQuery]) -> web.Response:
        """Returns what the next pass over a resource group would read, for `backend.ai mgr scheduler replay`."""
        content = await self._replays.dump(caller_of(call), call.query.scaling_group)
        return web.Response(body=content, content_type="application/json")

    @route("GET", "/scheduling/replay", query=ReplayQuery)
    async def replay(self, call: Call[Nothing, ReplayQuery]) -> ReplayView:
        """Says what the next pass would do by the policy of a resource group, and by another one."""
        query = call.query
        return await self._replays.replay(
            caller_of(call), query.scaling_group, order=query.order, placement=query.placement
        )
