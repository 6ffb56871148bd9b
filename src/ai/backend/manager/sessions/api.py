"""Sessions: creation, reading, renaming, restart, destruction (spec 03-08, client wire contract 2.1)."""

from __future__ import annotations

from ai.backend.common.errors import NotSupported
from ai.backend.common.structs import replace
from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.routes import Call, Nothing, OwnerKey, Reply, route
from ai.backend.manager.access.requests import SESSION_PROBLEMS, caller_of
from ai.backend.manager.agents.schemas import HistoryQuery, metric_series
from ai.backend.manager.sessions import schemas
from ai.backend.manager.sessions.service import SessionService
from ai.backend.manager.sessions.views import (
    audited_fields,
    container_stats,
    created_session,
    creation_of,
    dependency_tree,
    session_info,
    session_of,
)


class SessionsApi:
    """Serves sessions. ``{s}`` is a name, an id or an unambiguous prefix of an id; sessions of others are not found."""

    owner_key = OwnerKey.NAMED
    problems = SESSION_PROBLEMS

    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions

    @route(
        "POST",
        "/session",
        body=schemas.CreateSessionBody,
        body_aliases=schemas.CREATE_ALIASES,
        reply=schemas.CreatedSession,
        status=201,
        also=(200,),
        repeatable=True,  # the session has the id of the call
    )
    async def create(self, call: Call[schemas.CreateSessionBody]) -> Reply:
        """Create a session, or return the one of that name: 201 if it is new, 200 if it existed."""
        request = creation_of(call.body)
        if call.owner_access_key is not None:
            if request.owner_access_key not in (None, call.owner_access_key):
                raise refuse({"owner_access_key": "differs between query and body"})
            request = replace(request, owner_access_key=call.owner_access_key)
        call.audit_detail.update(audited_fields(request))
        reply = await self._sessions.create(caller_of(call), request, call_id=call.call_id)
        created_view = created_session(reply, enqueue_only=request.enqueue_only)
        return Reply(created_view, 201 if reply.created else 200)

    @route("GET", "/session/_/match", query=schemas.MatchQuery)
    async def match(self, call: Call[Nothing, schemas.MatchQuery]) -> schemas.MatchedSessions:
        """List live sessions whose name or id begins with ``id``."""
        matches = await self._sessions.match(caller_of(call), call.query.id, owner_access_key=call.owner_access_key)
        return {
            "matches": [{"id": str(match.id), "name": match.name, "status": match.status.value} for match in matches]
        }

    @route("GET", "/session/{s}", reply=schemas.SessionInfo)
    async def get_info(self, call: Call) -> schemas.SessionInfo:
        """Describe a session and what it uses."""
        return session_info(await self._sessions.get(**session_of(call)))

    @route("DELETE", "/session/{s}", query=schemas.DestroyQuery)
    async def destroy(self, call: Call[Nothing, schemas.DestroyQuery]) -> schemas.DestroyedSession:
        """End a session; replies with its last statistics."""
        query = call.query
        reply = await self._sessions.destroy(**session_of(call), forced=query.forced, recursive=query.recursive)
        return {
            "stats": dict(reply.stats),
            "containerStats": container_stats(reply.stats),
            "status": reply.session.status.value,
            "destroyed": [str(session_id) for session_id in reply.destroyed],
        }

    @route("PATCH", "/session/{s}")
    async def restart(self, call: Call) -> None:
        """Restart a session in place: global state is lost, files stay."""
        await self._sessions.restart(**session_of(call))

    @route("POST", "/session/{s}/rename", query=schemas.RenameQuery)
    async def rename(self, call: Call[Nothing, schemas.RenameQuery]) -> None:
        """Give a live session another name."""
        await self._sessions.rename(**session_of(call), new_name=call.query.name)

    @route("GET", "/session/{s}/status-history")
    async def status_history(self, call: Call) -> schemas.StatusHistory:
        """Report when a session entered each status, in lower case; null if it never did."""
        return {"result": dict(await self._sessions.status_history(**session_of(call)))}

    @route("GET", "/session/{s}/metrics/history", query=HistoryQuery)
    async def metric_history(self, call: Call[Nothing, HistoryQuery]) -> schemas.MetricHistory:
        """Report what each kernel used in the last hour or day, by metric."""
        history = await self._sessions.metric_history(**session_of(call), span=call.query.span)
        return {"kernels": {str(kernel_id): metric_series(series) for kernel_id, series in history.items()}}

    @route("GET", "/session/{s}/dependency-graph")
    async def dependency_graph(self, call: Call) -> schemas.DependencyTree:
        """Describe a session and its dependencies as a tree."""
        return dependency_tree(await self._sessions.dependency_graph(**session_of(call)))

    @route("POST", "/resource/recalculate-usage", repeatable=True, owner_key=OwnerKey.REFUSED)
    async def recount(self, call: Call) -> schemas.SlotAuditReply:
        """Recount the slots that kernels hold: ``drift`` names agents whose recorded slots differ, usually none."""
        audit = await self._sessions.recount(caller_of(call))
        difference_by_agent = {
            str(agent): {"recorded": recorded_slots.to_json(), "counted": counted_slots.to_json()}
            for agent, (recorded_slots, counted_slots) in audit.drift.items()
        }
        return {"drift": difference_by_agent, "orphans": [str(kernel) for kernel in audit.orphans]}

    @route("GET", "/session/{s}/abusing-report")
    async def abusing_report(self, call: Call) -> None:
        """Report that this is not supported: 501 for a session of the caller, 404 for others."""
        await self._sessions.get(**session_of(call))
        raise NotSupported("Agents of this server look for no abuse, so there is nothing to report.")
