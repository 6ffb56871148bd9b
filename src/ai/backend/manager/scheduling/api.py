"""REST routes about what the scheduler would do and why sessions wait (docs/howto/why-it-waits.md)."""

from __future__ import annotations

from ai.backend.common.structs import replace
from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.routes import Call, Nothing, OwnerKey, route
from ai.backend.manager.access.requests import OBJECT_PROBLEMS, SESSION_PROBLEMS, caller_of
from ai.backend.manager.scheduling.explanations import ExplanationService
from ai.backend.manager.scheduling.model import Explanation, QueueView, SharesView
from ai.backend.manager.scheduling.overview import SchedulingOverview
from ai.backend.manager.scheduling.schemas import ExplainQuery, QueueQuery, SharesQuery
from ai.backend.manager.sessions.schemas import CREATE_ALIASES, CreateSessionBody
from ai.backend.manager.sessions.views import creation_of, session_of


class ExplanationsApi:
    """Explains requests and waiting sessions."""

    owner_key = OwnerKey.NAMED
    problems = SESSION_PROBLEMS

    def __init__(self, explanations: ExplanationService) -> None:
        self._explanations = explanations

    @route(
        "POST",
        "/session/_/explain",
        body=CreateSessionBody,
        body_aliases=CREATE_ALIASES,
        query=ExplainQuery,
        audited=False,
        repeatable=True,
    )
    async def explain_request(self, call: Call[CreateSessionBody, ExplainQuery]) -> Explanation:
        """Say whether a request for a session would start now, wait or never start; nothing is created."""
        request = creation_of(call.body)
        if call.owner_access_key is not None:
            if request.owner_access_key not in (None, call.owner_access_key):
                raise refuse({"owner_access_key": "differs between query and body"})
            request = replace(request, owner_access_key=call.owner_access_key)
        return await self._explanations.explain_request(caller_of(call), request, count=call.query.count)

    @route("GET", "/session/{s}/explain")
    async def explain_session(self, call: Call) -> Explanation:
        """Say why a session waits, which sessions are ahead, and which hold the slots that the session lacks."""
        return await self._explanations.explain_session(**session_of(call))


class SchedulingApi:
    """Shows the queues and shares of resource groups, with the sessions and users that the caller may see."""

    owner_key = OwnerKey.ASSUMED
    problems = OBJECT_PROBLEMS

    def __init__(self, overview: SchedulingOverview) -> None:
        self._overview = overview

    @route("GET", "/scheduling/queue", query=QueueQuery)
    async def queue(self, call: Call[Nothing, QueueQuery]) -> QueueView:
        """List the waiting sessions of a resource group in the order in which they are tried."""
        query = call.query
        return await self._overview.queue(caller_of(call), query.scaling_group, limit=query.limit, offset=query.offset)

    @route("GET", "/scheduling/shares", query=SharesQuery)
    async def shares(self, call: Call[Nothing, SharesQuery]) -> SharesView:
        """List the fair shares of the caller's domain, projects and user in a resource group, or of all to see."""
        return await self._overview.shares(caller_of(call), call.query.scaling_group)
