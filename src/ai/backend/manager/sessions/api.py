"""Sessions: creation, reading, renaming, restart, destruction (spec 03-08, client wire contract 2.1)."""

from __future__ import annotations

from typing import Any

from ai.backend.common.errors import NotSupported
from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.routes import Call, Nothing, Reply, route
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.sessions.schemas import (
    CREATE_ALIASES,
    CreatedSession,
    CreateSessionBody,
    DestroyQuery,
    MatchQuery,
    RenameQuery,
    SessionInfo,
)
from ai.backend.manager.sessions.service import SessionService
from ai.backend.manager.sessions.views import created_session, creation_of, dependency_tree, session_info


class SessionsApi:
    """``{s}`` is a name, an id or the unambiguous beginning of an id. Somebody else's session is not found."""

    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions

    @route(
        "POST",
        "/session",
        body=CreateSessionBody,
        body_aliases=CREATE_ALIASES,
        reply=CreatedSession,
        status=201,
        repeatable=True,  # the session has the id of the call
    )
    async def create(self, call: Call[CreateSessionBody]) -> Reply:
        """Create a session, or return the one of that name: 201 if it is new, 200 if it was there."""
        request = creation_of(call.body)
        if call.owner_access_key is not None:
            if request.owner_access_key not in (None, call.owner_access_key):
                raise refuse({"owner_access_key": "differs between query and body"})
            from dataclasses import replace

            request = replace(request, owner_access_key=call.owner_access_key)
        reply = await self._sessions.create(caller_of(call), request, call_id=call.call_id)
        created = created_session(reply, enqueue_only=request.enqueue_only)
        return Reply(created, 201 if reply.created else 200)

    @route("GET", "/session/_/match", query=MatchQuery)
    async def match(self, call: Call[Nothing, MatchQuery]) -> dict[str, Any]:
        """Live sessions whose name or id begins so."""
        matches = await self._sessions.match(caller_of(call), call.query.id, owner_access_key=call.owner_access_key)
        return {"matches": [{"id": str(m.id), "name": m.name, "status": m.status.value} for m in matches]}

    @route("GET", "/session/{s}", reply=SessionInfo)
    async def get_info(self, call: Call) -> SessionInfo:
        """What a session is and uses."""
        caller, ref = caller_of(call), call.params["s"]
        return session_info(await self._sessions.get(caller, ref, owner_access_key=call.owner_access_key))

    @route("DELETE", "/session/{s}", query=DestroyQuery)
    async def destroy(self, call: Call[Nothing, DestroyQuery]) -> dict[str, Any]:
        """End a session; replies with its last statistics."""
        reply = await self._sessions.destroy(
            caller_of(call),
            call.params["s"],
            owner_access_key=call.owner_access_key,
            forced=call.query.forced,
            recursive=call.query.recursive,
        )
        return {
            "stats": reply.stats,
            "status": reply.session.status.value,
            "destroyed": [str(session_id) for session_id in reply.destroyed],
        }

    @route("PATCH", "/session/{s}")
    async def restart(self, call: Call) -> None:
        """Restart a session in place: global state is lost, files stay."""
        await self._sessions.restart(caller_of(call), call.params["s"], owner_access_key=call.owner_access_key)

    @route("POST", "/session/{s}/rename", query=RenameQuery)
    async def rename(self, call: Call[Nothing, RenameQuery]) -> None:
        """Give a live session another name."""
        await self._sessions.rename(
            caller_of(call), call.params["s"], call.query.name, owner_access_key=call.owner_access_key
        )

    @route("GET", "/session/{s}/status-history")
    async def status_history(self, call: Call) -> dict[str, Any]:
        """When a session entered each status, in lower case; null if it never did."""
        history = await self._sessions.status_history(
            caller_of(call), call.params["s"], owner_access_key=call.owner_access_key
        )
        return {"result": dict(history)}

    @route("GET", "/session/{s}/dependency-graph")
    async def dependency_graph(self, call: Call) -> dict[str, Any]:
        """The session and what it waits for, as a tree."""
        graph = await self._sessions.dependency_graph(
            caller_of(call), call.params["s"], owner_access_key=call.owner_access_key
        )
        return dependency_tree(graph)

    @route("POST", "/resource/recalculate-usage", repeatable=True)
    async def recount(self, call: Call) -> dict[str, Any]:
        """Recount the slots that kernels hold: ``drift`` names agents whose record differs, and should be empty."""
        audit = await self._sessions.recount(caller_of(call))
        drift = {
            agent: {"recorded": recorded.to_json(), "counted": counted.to_json()}
            for agent, (recorded, counted) in audit.drift.items()
        }
        return {"drift": drift, "orphans": [str(kernel) for kernel in audit.orphans]}

    @route("GET", "/session/{s}/abusing-report")
    async def abusing_report(self, call: Call) -> None:
        """Not offered by this server: 501 for a session of the caller's, 404 for others."""
        await self._sessions.get(caller_of(call), call.params["s"], owner_access_key=call.owner_access_key)
        raise NotSupported("Agents of this server look for no abuse, so there is nothing to report.")
