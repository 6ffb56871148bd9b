"""Runs GraphQL queries: parses and validates with a cache, checks limits, executes, and formats errors."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from ariadne import ScalarType, SchemaBindable, make_executable_schema
from graphql import DocumentNode, ExecutionResult, GraphQLError, GraphQLSchema, execute, parse, validate

from ai.backend.common.errors import BackendError
from ai.backend.infra.http.errors import PROBLEM_BASE, status_of
from ai.backend.manager.graphql.context import Context
from ai.backend.manager.graphql.limits import (
    MAX_TOKENS,
    QueryLimits,
    check_introspection,
    check_limits,
    widths_of,
)

log = logging.getLogger(__name__)
_CACHED_QUERIES = 256
_UUID = ScalarType("UUID")
_DATE_TIME = ScalarType("DateTime")
_JSON_STRING = ScalarType("JSONString")
_BIG_INT = ScalarType("BigInt")


@_UUID.serializer
def _format_uuid(value: Any) -> str:
    return str(value)


@_UUID.value_parser
def _parse_uuid(value: Any) -> UUID:
    try:
        return UUID(str(value))
    except ValueError:
        raise GraphQLError(f"not a UUID: {str(value)[:64]!r}") from None


@_DATE_TIME.serializer
def _format_date_time(value: datetime) -> str:
    return value.isoformat()


@_JSON_STRING.serializer
def _format_json_string(value: Any) -> str:
    return str(value)


@_BIG_INT.serializer
def _format_big_int(value: Any) -> int:
    return int(value)


def build_schema(definitions: str, bindables: Sequence[SchemaBindable]) -> GraphQLSchema:
    """Return the executable schema of definitions and resolvers.

    Raises:
        ValueError: a resolver is of a field that the definitions lack.
    """
    return make_executable_schema(definitions, *bindables, _UUID, _DATE_TIME, _JSON_STRING, _BIG_INT)


class Executor:
    """Executes queries on one schema and caches their parsed documents."""

    def __init__(self, limits: QueryLimits, schema: GraphQLSchema) -> None:
        self._limits = limits
        self.schema = schema
        self._widths = widths_of(self.schema)
        self._parsed: OrderedDict[str, DocumentNode | list[GraphQLError]] = OrderedDict()

    async def execute(
        self, text: str, variables: Mapping[str, Any], operation: str | None, context: Context
    ) -> dict[str, Any]:
        """Return the reply to a query: always ``data``, and ``errors`` if there are any."""
        document = self._prepare(text)
        if isinstance(document, list):
            return {"data": None, "errors": [format_error(error) for error in document]}
        try:
            if not self._may_introspect(context):
                check_introspection(document)
            check_limits(document, variables, self._limits, self._widths)
        except GraphQLError as error:
            return {"data": None, "errors": [format_error(error)]}
        outcome = execute(
            self.schema,
            document,
            context_value=context,
            variable_values=dict(variables),
            operation_name=operation,
        )
        result = outcome if isinstance(outcome, ExecutionResult) else await outcome
        reply: dict[str, Any] = {"data": result.data}
        if result.errors:
            reply["errors"] = [format_error(error) for error in result.errors]
        return reply

    def _may_introspect(self, context: Context) -> bool:
        """Return True if the caller may query the schema itself."""
        allowed = self._limits.introspection
        return allowed == "everybody" or (allowed == "superadmins" and context.caller.is_superadmin)

    def _prepare(self, text: str) -> DocumentNode | list[GraphQLError]:
        cached = self._parsed.get(text)
        if cached is not None:
            self._parsed.move_to_end(text)
            return cached
        prepared: DocumentNode | list[GraphQLError]
        try:
            prepared = parse(text, max_tokens=MAX_TOKENS)
            errors = validate(self.schema, prepared)
            if errors:
                prepared = errors[:8]
        except GraphQLError as error:
            prepared = [error]
        except RecursionError:
            prepared = [GraphQLError("The query is nested too deeply.")]
        self._parsed[text] = prepared
        if len(self._parsed) > _CACHED_QUERIES:
            self._parsed.popitem(last=False)
        return prepared


def format_error(error: GraphQLError) -> dict[str, Any]:
    """Return an error as the reply carries it; an unexpected exception is logged and its text hidden."""
    formatted: dict[str, Any] = {"message": error.message}
    if error.locations:
        formatted["locations"] = [location.formatted for location in error.locations]
    if error.path:
        formatted["path"] = error.path
    cause = error.original_error
    if isinstance(cause, BackendError):
        formatted["message"] = cause.message
        formatted["extensions"] = {
            "code": cause.code,
            "type": PROBLEM_BASE + cause.code,
            "status": int(status_of(cause)),
            "data": cause.data,
        }
    elif cause is not None and not isinstance(cause, GraphQLError):
        log.error("a resolver failed", exc_info=cause)
        formatted["message"] = "Something went wrong inside the platform."
        formatted["extensions"] = {"code": "internal-error"}
    return formatted
