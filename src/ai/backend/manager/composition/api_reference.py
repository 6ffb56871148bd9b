"""The generated references of the API (`python -m tools.docs`): pages for people, a document for tools."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from ai.backend.infra.http.openapi import openapi_document, reference_page
from ai.backend.infra.telemetry import Metrics
from ai.backend.manager.composition.app import api_endpoints
from ai.backend.manager.composition.services import Services
from ai.backend.manager.config.settings import ManagerSettings

_GRAPHQL = """<!-- generated from schema.graphql of all features by ai.backend.manager.composition.api_reference -->

# GraphQL reference of the manager

`POST /admin/gql` (or `/admin/graphql`) with `{"query", "variables", "operationName"}`, signed as every request. The
reply has status 200, `data`, and `errors` if there are any; `errors[].extensions` has the `code`, `type`, `status` and
`data` of the problem. The keys of an object come in the order of the selection.

A list takes `limit` (1 to MAX_PAGE) and `offset`, and replies `items` and `total_count`. `filter` is an expression:

    status == "RUNNING" & (name ilike "%test%" | tag in ["a", "b"]) & terminated_at is null

with the operators `==`, `!=`, `<`, `<=`, `>`, `>=`, `is`, `isnot`, `like`, `ilike`, `in` and `contains`; `&` binds
tighter than `|`, `%` is the wildcard. `order` is a list such as `name,-created_at`.

A query may have at most MAX_TOKENS tokens. Unless the settings say otherwise, it may be MAX_DEPTH levels deep and cost
MAX_COST: one for each field, times the pages around it. The schema itself is told to those whom
`graphql.introspection` names.

"""
_HEAD = (
    "<!-- generated from the route declarations by ai.backend.manager.composition.api_reference; do not edit -->\n\n"
)


class _Unbound:
    """Stands for a service: endpoints are bound to it and never called."""

    settings = ManagerSettings()

    def __getattr__(self, name: str) -> _Unbound:
        return self

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError("a reference calls nothing")


def document() -> dict[str, Any]:
    """Returns the OpenAPI document of the manager, without a version of the software, so that releases do not change
    it."""
    services = cast(Services, _Unbound())
    endpoints = api_endpoints(services, Metrics("manager"))
    return openapi_document(endpoints, title="Manager API", version="v7.20230615")


def openapi_json() -> str:
    return msgspec.json.format(msgspec.json.encode(document(), order="deterministic"), indent=1).decode() + "\n"


def rest_page() -> str:
    return _HEAD + reference_page(document(), title="REST reference of the manager")


def graphql_definitions() -> str:
    """Returns the GraphQL definitions of all features, merged into one schema."""
    from graphql import print_schema

    from ai.backend.manager.composition.graphql_schema import load_definitions
    from ai.backend.manager.graphql.executor import build_schema

    return print_schema(build_schema(load_definitions(), ()))


def graphql_page() -> str:
    from ai.backend.manager.graphql import limits
    from ai.backend.manager.graphql.settings import GraphQLSettings

    head = _GRAPHQL
    defaults = GraphQLSettings()
    numbers = {"PAGE": limits.MAX_PAGE, "TOKENS": limits.MAX_TOKENS}
    numbers |= {"DEPTH": defaults.max_depth, "COST": defaults.max_cost}
    for name, value in numbers.items():
        head = head.replace(f"MAX_{name}", f"{value:,}")
    schema = graphql_definitions()
    return f"{head}```graphql\n{schema}\n```\n"
