"""Device claims over GraphQL."""

from __future__ import annotations

import json

from ai.backend.common.errors import NotFound
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.graphql.context import Info, context_of
from ai.backend.manager.graphql.resolvers import query
from ai.backend.manager.graphql.values import View
from ai.backend.manager.sessions.claims.model import ClaimQuery, ClaimView
from ai.backend.manager.sessions.claims.schemas import claim_reply
from ai.backend.manager.sessions.claims.service import ClaimService

_JSON_FIELDS = ("requested_slots", "occupied_slots", "devices")


def _claim_view(info: Info, view: ClaimView) -> View:
    caller = context_of(info).caller
    reply = dict(claim_reply(view, sees_agents=is_permitted(caller, Operation.SEE_AGENTS)))
    claim_times = {name: getattr(view.claim, name) for name in ("created_at", "allocated_at", "idle_since")}
    return {**reply, **claim_times, **{name: json.dumps(reply[name]) for name in _JSON_FIELDS}}


class ClaimResolvers:
    """Answers the GraphQL fields of device claims."""

    def __init__(self, claims: ClaimService) -> None:
        self._claims = claims

    @query("device_claim")
    async def device_claim(self, info: Info, ref: str) -> View | None:
        try:
            return _claim_view(info, await self._claims.get(context_of(info).caller, ref))
        except NotFound:
            return None

    @query("device_claim_list")
    async def device_claim_list(self, info: Info, limit: int, offset: int) -> View:
        page = await self._claims.search(context_of(info).caller, ClaimQuery(limit=limit, offset=offset))
        return {"items": [_claim_view(info, view) for view in page.items], "total_count": page.total_count}
