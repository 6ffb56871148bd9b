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
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.graphql.context import Context
from ai.backend.manager.graphql.limits import MAX_TOKENS, check_introspection, check_limits, widths_of
from ai.backend.manager.graphql.settings import GraphQLSettings

log = logging.getLogger(__name__)
_CACHED_QUERIES = 256


def _parse_uuid(value: Any) -> UUID:
    try:
        return UUID(str(value))
    except ValueError:
        raise GraphQLError(f"not a UUID: {str(value)[:64]!r}") from None


_SCALARS = (
    ScalarType("UUID", serializer=str, value_parser=_parse_uuid),
    ScalarType("DateTime", serializer=datetime.isoformat),
    ScalarType("JSONString", serializer=str),
    ScalarType("BigInt", serializer=int),
)


def build_schema(definitions: str, bindables: Sequence[SchemaBindable]) -> GraphQLSchema:
    """Returns the executable schema. Raises ValueError for a resolver of a field that the definitions lack."""
    return make_executable_schema(definitions, *bindables, *_SCALARS)


class Executor:
    """Executes queries on one schema and caches their parsed documents."""

    def __init__(self, settings: GraphQLSettings, schema: GraphQLSchema) -> None:
        self._settings = settings
        self.schema = schema
        self._widths = widths_of(self.schema)
        self._parsed: OrderedDict[str, DocumentNode | list[GraphQLError]] = OrderedDict()

    async def execute(
        self, text: str, variables: Mapping[str, Any], operation: str | None, context: Context
    ) -> dict[str, Any]:
        """Returns the reply to a query: always ``data``, and ``errors`` if there are any."""
        document = self._prepare(text)
        if isinstance(document, list):
            return {"data": None, "errors": [format_error(error) for error in document]}
        try:
            allows_introspection = self._settings.introspection
            if allows_introspection != "everybody" and not (
                allows_introspection == "superadmins" and is_permitted(context.caller, Operation.SEE_SCHEMA)
            ):
                check_introspection(document)
            check_limits(document, variables, self._settings, self._widths)
        except GraphQLError as error:
            return {"data": None, "errors": [format_error(error)]}
        execution = execute(
            self.schema, document, context_value=context, variable_values=dict(variables), operation_name=operation
        )
        result = execution if isinstance(execution, ExecutionResult) else await execution
        reply: dict[str, Any] = {"data": result.data}
        if result.errors:
            reply["errors"] = [format_error(error) for error in result.errors]
        return reply

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
    """Returns an error for the reply; an unexpected exception is logged and its text hidden."""
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
