"""Runs GraphQL queries: parses and validates them with a cache, checks limits, executes, and formats errors."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ariadne import ScalarType, SchemaBindable, make_executable_schema
from graphql import DocumentNode, ExecutionResult, GraphQLError, GraphQLSchema, execute, parse, validate

from ai.backend.common.errors import BackendError
from ai.backend.infra.http.errors import PROBLEM_BASE, status_of
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.graphql import scalars
from ai.backend.manager.graphql.context import Context
from ai.backend.manager.graphql.limits import MAX_TOKENS, check_introspection, check_limits, widths_of
from ai.backend.manager.graphql.settings import GraphQLSettings
from ai.backend.manager.graphql.variables import adapt_variable_types

log = logging.getLogger(__name__)
_MAX_CACHED_QUERIES = 256
_MAX_ERRORS = 8
_TOO_DEEP_MESSAGE = "The query is nested too deeply."


_SCALARS = (
    ScalarType("UUID", serializer=str, value_parser=scalars.parse_uuid),
    ScalarType("DateTime", serializer=datetime.isoformat),
    ScalarType("JSONString", serializer=str, value_parser=scalars.parse_json_text),
    ScalarType("VFolderHosts", value_parser=scalars.parse_json_value),
    ScalarType("BigInt", serializer=int, value_parser=scalars.parse_whole_number),
)


def build_schema(definitions: str, bindables: Sequence[SchemaBindable]) -> GraphQLSchema:
    """Returns the executable schema. Raises ValueError for a resolver of a field that the definitions lack."""
    return make_executable_schema(definitions, *bindables, *_SCALARS)


@dataclass(slots=True)
class _ParsedQuery:
    """Holds a parsed query; ``errors`` is None until the query is validated."""

    document: DocumentNode
    errors: Sequence[GraphQLError] | None = None


class Executor:
    """Executes queries on one schema and caches their parsed documents."""

    def __init__(
        self,
        settings: GraphQLSettings,
        schema: GraphQLSchema,
        is_schema_open: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._settings = settings
        self._is_schema_open = is_schema_open
        self.schema = schema
        self._widths = widths_of(self.schema)
        self._queries: OrderedDict[str, _ParsedQuery] = OrderedDict()

    async def execute(
        self, query_text: str, variables: Mapping[str, Any], operation: str | None, context: Context
    ) -> dict[str, Any]:
        """Returns the reply to a query, which always has ``data``, and ``errors`` if there are errors. If mutations
        were refused, ``extensions.problems`` has the reasons by their names in the reply.
        """
        try:
            query = self._parse(query_text)
            check_limits(query.document, variables, self._settings, self._widths)
            allows_introspection = self._settings.introspection
            if allows_introspection != "everybody" and not (
                allows_introspection == "superadmins" and is_permitted(context.caller, Operation.SEE_SCHEMA)
            ):
                await self._check_introspection(query.document)
        except GraphQLError as error:
            return {"data": None, "errors": [format_error(error)]}
        if query.errors is None:
            query.errors = self._validate(query)
        if query.errors:
            return {"data": None, "errors": [format_error(error) for error in query.errors]}
        execution = execute(
            self.schema,
            query.document,
            context_value=context,
            variable_values=dict(variables),
            operation_name=operation,
        )
        result = execution if isinstance(execution, ExecutionResult) else await execution
        reply: dict[str, Any] = {"data": result.data}
        if result.errors:
            reply["errors"] = [format_error(error) for error in result.errors]
        if context.refusals:
            problems = {name: _problem_of(refusal) for name, refusal in context.refusals.items()}
            reply["extensions"] = {"problems": problems}
        return reply

    async def _check_introspection(self, document: DocumentNode) -> None:
        """Raises GraphQLError for a query about the schema, unless the shared configuration allows such queries."""
        try:
            check_introspection(document)
        except GraphQLError:
            if self._is_schema_open is None or not await self._is_schema_open():
                raise

    def _parse(self, query_text: str) -> _ParsedQuery:
        """Returns a parsed query, from the cache if it is there. Raises GraphQLError."""
        if query_text in self._queries:
            self._queries.move_to_end(query_text)
            return self._queries[query_text]
        try:
            query = _ParsedQuery(parse(query_text, max_tokens=MAX_TOKENS))
        except RecursionError:
            raise GraphQLError(_TOO_DEEP_MESSAGE) from None
        self._queries[query_text] = query
        if len(self._queries) > _MAX_CACHED_QUERIES:
            self._queries.popitem(last=False)
        return query

    def _validate(self, query: _ParsedQuery) -> Sequence[GraphQLError]:
        """Validates a parsed query by the schema and returns its errors, or an empty list for a valid query.

        The limits of the query must have been checked before, since the time of a validation grows with the square of
        repeated fields. If the query is not valid, the types of its variables are adapted, and it is validated again.
        """
        errors = validate(self.schema, query.document, max_errors=_MAX_ERRORS)
        if errors:
            query.document = adapt_variable_types(self.schema, query.document)
            errors = validate(self.schema, query.document, max_errors=_MAX_ERRORS)
        return errors


def format_error(error: GraphQLError) -> dict[str, Any]:
    """Returns an error in the form of the reply; an unexpected exception is logged and its text hidden."""
    formatted_error: dict[str, Any] = {"message": error.message}
    if error.locations:
        formatted_error["locations"] = [location.formatted for location in error.locations]
    if error.path:
        formatted_error["path"] = error.path
    cause = error.original_error
    if isinstance(cause, BackendError):
        formatted_error["message"] = cause.message
        formatted_error["extensions"] = _problem_of(cause)
    elif isinstance(cause, RecursionError):  # of a literal, while it is validated
        formatted_error["message"] = _TOO_DEEP_MESSAGE
    elif cause is not None and not isinstance(cause, GraphQLError):
        log.error("a resolver failed", exc_info=cause)
        formatted_error["message"] = "Something went wrong inside the platform."
        formatted_error["extensions"] = {"code": "internal-error"}
    return formatted_error


def _problem_of(error: BackendError) -> dict[str, Any]:
    """Returns the ``extensions`` of an error in a reply: code, type, HTTP status and data of a BackendError."""
    return {
        "code": error.code,
        "type": PROBLEM_BASE + error.code,
        "status": int(status_of(error)),
        "data": error.data,
    }
