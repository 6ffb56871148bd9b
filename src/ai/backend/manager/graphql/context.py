"""The root queries. Who may see what is decided in the services; here is only the way there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from graphql import GraphQLResolveInfo

from ai.backend.common.errors import BackendError, InvalidInput
from ai.backend.common.ids import AgentId, SessionId
from ai.backend.infra.http.decode import refuse
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.agents.model import Agent, KernelOccupancy
from ai.backend.manager.composition.services import Services
from ai.backend.manager.graphql import values
from ai.backend.manager.graphql.limits import MAX_PAGE
from ai.backend.manager.query.language import parse_filter, parse_order
from ai.backend.manager.query.model import OrderBy
from ai.backend.manager.sessions.model import Session

Info: TypeAlias = "GraphQLResolveInfo[Any]"


class Context:
    """One request: who asks, and what has been loaded for it."""

    def __init__(self, caller: Caller, services: Services, *, request_id: str = "", address: str = "") -> None:
        self.caller = caller
        self.address = address
        self.services = services
        self._request_id = request_id
        self.variables: Mapping[str, Any] = {}
        """As they were sent, declared or not."""
        self._wanted: set[SessionId] = set()
        self._dependencies: dict[SessionId, Session] = {}
        self._listed: set[AgentId] = set()
        self._holdings: dict[str, Sequence[KernelOccupancy]] = {}
        self._unjudged: dict[SessionId, Session] = {}
        self._judged: dict[SessionId, Mapping[str, Any]] = {}
        self._loading = asyncio.Lock()

    @asynccontextmanager
    async def audited(self, operation: str, object_type: str, object_id: str) -> AsyncIterator[None]:
        """Keep who changed what, and how it ended."""
        outcome = "success"
        try:
            yield
        except BackendError as e:
            outcome = e.code
            raise
        finally:
            await self.services.audit.record(
                self.caller,
                operation,
                request_id=self._request_id,
                object_type=object_type,
                object_id=object_id,
                outcome=outcome,
            )

    def sessions(self, sessions: Iterable[Session]) -> list[values.View]:
        """Views of sessions, whose dependencies and idle checks will be loaded together if they are asked for."""
        from ai.backend.manager.sessions import graphql as sessions_graphql

        found = list(sessions)
        self._unjudged.update((session.id, session) for session in found)
        self._wanted.update(d for session in found for d in session.dependencies)
        return [sessions_graphql.session_view(session, self.caller) for session in found]

    def agents(self, agents: Iterable[Agent]) -> list[values.View]:
        """Views of agents, whose allocations will be loaded together if they are asked for."""
        from ai.backend.manager.agents import graphql as agents_graphql

        found = list(agents)
        self._listed.update(a.id for a in found)
        return [agents_graphql.agent_view(agent) for agent in found]

    async def holdings(self, agent_id: str) -> Sequence[KernelOccupancy]:
        async with self._loading:
            if self._listed:
                listed, self._listed = self._listed, set()
                self._holdings.update(await self.services.agents.holdings(self.caller, listed))
        return self._holdings.get(agent_id, ())

    async def idle_checks(self, session_id: SessionId) -> Mapping[str, Any]:
        async with self._loading:
            if self._unjudged:
                unjudged, self._unjudged = list(self._unjudged.values()), {}
                self._judged.update(await self.services.idle.reports(unjudged))
        return self._judged.get(session_id, {})

    async def dependencies(self, ids: Iterable[SessionId]) -> list[values.View]:
        async with self._loading:  # resolvers of siblings run at once, and what one loads is for all
            if self._wanted:
                wanted, self._wanted = tuple(self._wanted), set()
                self._dependencies.update(await self.services.sessions.get_many(self.caller, wanted))
        return self.sessions([self._dependencies[i] for i in ids if i in self._dependencies])


def context_of(info: Info) -> Context:
    context = info.context
    if not isinstance(context, Context):
        raise TypeError("a resolver outside of its endpoint")
    return context


def page_of(args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that every list takes, as fields of a ListQuery.

    Raises:
        InvalidInput: a page out of range, or a malformed filter or order.
    """
    limit, offset = args["limit"], args["offset"]
    if not 1 <= limit <= MAX_PAGE:
        raise refuse({"limit": f"must be between 1 and {MAX_PAGE}"})
    if offset < 0:
        raise refuse({"offset": "must not be negative"})
    order = parse_order(args.get("order"))
    if not order and args.get("order_key"):
        order = tuple(
            OrderBy(field=o.field, descending=not args.get("order_asc", True)) for o in parse_order(args["order_key"])
        )
    return {"limit": limit, "offset": offset, "filter": parse_filter(args.get("filter")), "order": order}


def structured(field: str, given: Any) -> Any:
    """JSON in a string, as the published client sends it, or the value itself."""
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except ValueError:
        raise InvalidInput(f"{field} is not JSON.", data={field: "malformed"}) from None


async def answer(
    info: Info,
    kind: str,
    name: str,
    work: Callable[[], Awaitable[Any]],
    view: Callable[[Any], values.View] | None = None,
) -> values.View:
    """Do it, keep who did, and say whether it is done; the object is under ``kind``."""
    try:
        async with context_of(info).audited(info.field_name, kind, name):
            made = await work()
    except BackendError as e:
        return {"ok": False, "msg": e.message, kind: None}
    return {"ok": True, "msg": "success", kind: view(made) if view is not None else None}
