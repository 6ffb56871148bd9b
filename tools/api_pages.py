"""The references of the manager's API, written from its endpoints and its GraphQL schema."""

from __future__ import annotations

from typing import Any

from ai.backend.infra.http.errors import PROBLEM_BASE, problem_classes
from ai.backend.manager.composition.api_reference import document, graphql_definitions
from ai.backend.manager.graphql import limits
from ai.backend.manager.graphql.settings import GraphQLSettings

_GRAPHQL = """<!-- generated from schema.graphql of all features by tools/api_pages.py -->

# GraphQL reference of the manager

`POST /admin/gql` (or `/admin/graphql`) with `{"query", "variables", "operationName"}`, signed as every request. The
reply has status 200, `data`, and `errors` if there are any; `errors[].extensions` has the `code`, `type`, `status` and
`data` of the problem. A refused mutation has `ok: false` and its text in `msg`; the rest of its problem stands in
`extensions.problems` of the reply, by the mutation's name there. The keys of an object come in the order of the
selection.

A list takes `limit` (1 to MAX_PAGE) and `offset`, and replies `items` and `total_count`. `filter` is an expression:

    status == "RUNNING" & (name ilike "%test%" | tag in ["a", "b"]) & terminated_at is null

with the operators `==`, `!=`, `<`, `<=`, `>`, `>=`, `is`, `isnot`, `like`, `ilike`, `in` and `contains`; `&` binds
tighter than `|`, `%` is the wildcard; a date or a time without a zone is in UTC. `order` is a list
such as `name,-created_at`.

A query may have at most MAX_TOKENS tokens. Unless the settings say otherwise, it may be MAX_DEPTH levels deep and cost
MAX_COST: one for each field, times the pages around it. The schema itself is told to those whom
`graphql.introspection` names.

"""
_HEAD = "<!-- generated from the route declarations by tools/api_pages.py; do not edit -->\n\n"


def rest_page() -> str:
    return _HEAD + reference_page(document(), title="REST reference of the manager")


def graphql_page() -> str:
    head = _GRAPHQL
    defaults = GraphQLSettings()
    numbers = {"PAGE": limits.MAX_PAGE, "TOKENS": limits.MAX_TOKENS}
    numbers |= {"DEPTH": defaults.max_depth, "COST": defaults.max_cost}
    for name, value in numbers.items():
        head = head.replace(f"MAX_{name}", f"{value:,}")
    schema = graphql_definitions()
    return f"{head}```graphql\n{schema}\n```\n"


def reference_page(document: dict[str, Any], *, title: str) -> str:
    """Returns the document as Markdown: a table of endpoints by tag, of the fields of every schema, and of problems."""
    lines = [
        f"# {title}",
        "",
        "Parameters in a query string may come as a JSON body instead, where a request has no other body.",
        "",
    ]
    by_tag: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append((path, method.upper(), operation))
    for tag, operations in by_tag.items():
        lines += [f"## {tag.capitalize()}", "", "| request | what it does | takes | signed |", "|---|---|---|---|"]
        for path, method, operation in operations:
            lines.append(
                f"| `{method} {path}` | {operation['summary']} | {_takes(operation)} "
                f"| {'yes' if operation['security'] else 'no'} |"
            )
        lines.append("")
    lines += ["## Schemas", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += _schema_table(name, schema)
    lines += ["## Problems", "", f"`type` is `{PROBLEM_BASE}` followed by the code.", ""]
    lines += ["| code | status | meaning |", "|---|---|---|"]
    problems = {
        cls.code: f"| `{cls.code}` | {int(status)} | {cls.title} |" for cls, status in problem_classes().items()
    }
    lines += problems.values()
    return "\n".join([*lines, ""])


def _takes(operation: dict[str, Any]) -> str:
    names = [
        f"`{p['name']}`" for p in operation["parameters"] if p["in"] == "query" and p["name"] != "owner_access_key"
    ]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if "$ref" in body:
        names.append(f"body [{body['$ref'].rpartition('/')[2]}](#schemas)")
    elif "requestBody" in operation:
        names.append("multipart/form-data")
    return ", ".join(names)


def _schema_table(name: str, schema: dict[str, Any]) -> list[str]:
    lines = [f"### {name}", ""]
    if schema.get("description"):
        lines += [schema["description"].strip(), ""]
    required = set(schema.get("required", ()))
    if schema.get("properties"):
        lines += ["| field | type | required |", "|---|---|---|"]
        for field, description in schema["properties"].items():
            lines.append(f"| `{field}` | {_type_name(description)} | {'yes' if field in required else ''} |")
        lines.append("")
    return lines


def _type_name(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type_name(option) for option in schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type_name(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))
