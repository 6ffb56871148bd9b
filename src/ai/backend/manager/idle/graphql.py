"""The GraphQL field of idle checks."""

from __future__ import annotations

import json
from operator import attrgetter

from ai.backend.manager.graphql.context import Info, context_of
from ai.backend.manager.graphql.resolvers import field
from ai.backend.manager.graphql.values import View
from ai.backend.manager.idle.service import IdleService


class IdleResolvers:
    """Answers the field of sessions that holds the idle checks."""

    def __init__(self, idle: IdleService) -> None:
        self._idle = idle

    @field("ComputeSession", "idle_checks")
    async def session_idle_checks(self, view: View, info: Info) -> str:
        loader = context_of(info).loader("idle checks", self._idle.reports, attrgetter("id"))
        return json.dumps(await loader.get(view["session"]) or {})
