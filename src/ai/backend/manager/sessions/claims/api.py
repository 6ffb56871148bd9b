"""Device claims over REST."""

from __future__ import annotations

from typing import Any, TypedDict

from ai.backend.infra.http.fields import duration_s
from ai.backend.infra.http.routes import Call, Nothing, OwnerKey, Reply, route
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.access.requests import SESSION_PROBLEMS, caller_of
from ai.backend.manager.sessions.claims import schemas
from ai.backend.manager.sessions.claims.creation import CreateClaim
from ai.backend.manager.sessions.claims.model import ClaimQuery, ClaimView
from ai.backend.manager.sessions.claims.service import ClaimService


class _ClaimArguments(TypedDict):
    caller: Caller
    ref: str
    owner_access_key: str | None


def _claim_of(call: Call[Any, Any]) -> _ClaimArguments:
    return {"caller": caller_of(call), "ref": call.params["c"], "owner_access_key": call.owner_access_key}


def _reply(call: Call[Any, Any], view: ClaimView) -> schemas.ClaimReply:
    return schemas.claim_reply(view, sees_agents=is_permitted(caller_of(call), Operation.SEE_AGENTS))


class ClaimsApi:
    """Serves device claims. ``{c}`` is an id, or the name of one of the owner's; those of others are not found."""

    owner_key = OwnerKey.NAMED
    problems = SESSION_PROBLEMS

    def __init__(self, claims: ClaimService) -> None:
        self._claims = claims

    @route("POST", "/claims", body=schemas.CreateClaimBody, reply=schemas.ClaimReply, status=201)
    async def create(self, call: Call[schemas.CreateClaimBody]) -> Reply:
        """Create a device claim; it holds nothing until a session uses it."""
        body = call.body
        request = CreateClaim(
            name=body.name,
            resources=body.resources,
            device_requests=tuple(body.device_requests),
            domain=body.domain,
            group=body.group,
            scaling_group=body.scaling_group,
            idle_timeout_s=duration_s(body.idle_timeout, field="idle_timeout"),
            owner_access_key=call.owner_access_key or body.owner_access_key,
        )
        return Reply(_reply(call, await self._claims.create(caller_of(call), request)), 201)

    @route("GET", "/claims", query=schemas.ListClaimsQuery, reply=schemas.ClaimList)
    async def search(self, call: Call[Nothing, schemas.ListClaimsQuery]) -> schemas.ClaimList:
        """List device claims, the newest first."""
        query = ClaimQuery(limit=call.query.limit, offset=call.query.offset)
        page = await self._claims.search(caller_of(call), query, owner_access_key=call.owner_access_key)
        return schemas.ClaimList(items=[_reply(call, view) for view in page.items], total_count=page.total_count)

    @route("GET", "/claims/{c}", reply=schemas.ClaimReply)
    async def get(self, call: Call) -> schemas.ClaimReply:
        """Describe a device claim."""
        return _reply(call, await self._claims.get(**_claim_of(call)))

    @route("POST", "/claims/{c}/release", reply=schemas.ClaimReply)
    async def release(self, call: Call) -> schemas.ClaimReply:
        """Return the devices of a claim that no session holds; the next session allocates anew."""
        return _reply(call, await self._claims.release(**_claim_of(call)))

    @route("DELETE", "/claims/{c}", reply=schemas.ClaimReply)
    async def delete(self, call: Call) -> schemas.ClaimReply:
        """Delete a claim, with the end of the last live session that names it."""
        return _reply(call, await self._claims.delete(**_claim_of(call)))
