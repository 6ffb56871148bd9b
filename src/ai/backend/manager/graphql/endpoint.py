"""The route of GraphQL queries: POST /admin/gql, /admin/graphql in the spec (client wire contract 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict

import msgspec
from aiohttp import web
from msgspec import Meta

from ai.backend.common.errors import Forbidden
from ai.backend.infra.http.routes import Call, Schema, route
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.graphql.settings import GraphQLSettings

if TYPE_CHECKING:
    from graphql import GraphQLSchema

    from ai.backend.manager.graphql.context import AuditTrail
    from ai.backend.manager.graphql.executor import Executor

MAX_QUERY_CHARACTERS = 65_536
SCHEMA_OPEN_KEY = "config/api/allow-graphql-schema-introspection"
"""The key of the shared configuration that opens the schema to everybody if it is ``true`` (spec 03-13:178)."""


class GraphQLBody(Schema, frozen=True, rename={"operation_name": "operationName"}):
    query: Annotated[str, Meta(min_length=1, max_length=MAX_QUERY_CHARACTERS)]
    variables: dict[str, Any] = msgspec.field(default_factory=dict)
    operation_name: Annotated[str, Meta(max_length=256)] | None = None
    extensions: dict[str, Any] = msgspec.field(default_factory=dict)


class GraphQLLocation(TypedDict):
    line: int
    column: int


class GraphQLProblem(TypedDict):
    """An error; ``extensions`` has the ``code``, ``type``, ``status`` and ``data`` of a problem."""

    message: str
    locations: NotRequired[list[GraphQLLocation]]
    path: NotRequired[list[str | int]]
    extensions: NotRequired[dict[str, Any]]


class GraphQLReply(TypedDict):
    """The reply to a GraphQL query: data, errors, and the problems of refused mutations.

    ``extensions.problems`` has, by the names of refused mutations, the same fields as ``extensions`` of an error.
    """

    data: dict[str, Any] | None
    errors: NotRequired[list[GraphQLProblem]]
    extensions: NotRequired[dict[str, Any]]


class GraphQLApi:
    """Serves GraphQL queries. The schema is built at the first query, so that the manager starts faster."""

    def __init__(
        self,
        audit: AuditTrail,
        settings: GraphQLSettings,
        load_schema: Callable[[], GraphQLSchema],
        is_schema_open: Callable[[], Awaitable[bool]],
    ) -> None:
        self._settings = settings
        self._is_schema_open = is_schema_open
        self._audit = audit
        self._load_schema = load_schema
        self._executor: Executor | None = None
        self._building = asyncio.Lock()

    @route("GET", "/spec/graphiql", produces=("text/html",))
    async def explorer(self, call: Call) -> web.Response:
        """Return the page of GraphiQL, which loads its scripts from the network (spec 03-13:183)."""
        if not await self._is_schema_open():
            message = f"GraphiQL asks about the schema: a superadmin sets {SCHEMA_OPEN_KEY} to true."
            raise Forbidden(message, data={"key": SCHEMA_OPEN_KEY})
        from ariadne.explorer import ExplorerGraphiQL

        return web.Response(text=ExplorerGraphiQL(title="Manager API").html(None), content_type="text/html")

    @route("POST", "/spec/graphiql", body=GraphQLBody, audited=False, reply=GraphQLReply)
    @route("POST", "/admin/gql", body=GraphQLBody, audited=False, reply=GraphQLReply)
    async def query(self, call: Call[GraphQLBody]) -> dict[str, Any]:
        """Answer a GraphQL query; errors come with status 200, beside the data."""
        from ai.backend.manager.graphql.context import Context

        executor = await self._get_executor()
        body = call.body
        context = Context(
            caller_of(call), self._audit, request_id=call.request_id, address=call.address, variables=body.variables
        )
        return await executor.execute(body.query, body.variables, body.operation_name, context)

    async def _get_executor(self) -> Executor:
        if self._executor is None:
            async with self._building:
                if self._executor is None:
                    self._executor = await asyncio.get_running_loop().run_in_executor(
                        None, _make_executor, self._settings, self._load_schema, self._is_schema_open
                    )
        return self._executor


def _make_executor(
    settings: GraphQLSettings, load_schema: Callable[[], GraphQLSchema], is_schema_open: Callable[[], Awaitable[bool]]
) -> Executor:
    from ai.backend.manager.graphql.executor import Executor

    return Executor(settings, load_schema(), is_schema_open)
