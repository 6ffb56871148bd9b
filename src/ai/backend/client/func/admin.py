"""Sends GraphQL requests (spec 03-09, client wire contract 3), and reads lists by them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

from ai.backend.client.exceptions import BackendAPIError, UnusableReply
from ai.backend.client.transport import Transport
from ai.backend.client.types import Remote
from ai.backend.client.wire import Call, new_token

_JSON_INPUT_FIELDS = frozenset(
    (
        "allowed_vfolder_hosts", "total_resource_slots", "max_pending_session_resource_slots", "resource_slots",
        "driver_opts", "scheduler_opts",
    )
)  # fmt: skip
"""Fields of inputs that are JSON in a string."""

Arguments = Mapping[str, tuple[str, Any]]
"""Name -> GraphQL type and value; an argument whose value is None is omitted."""


@dataclass(frozen=True, slots=True)
class PaginatedResult:
    """Holds a page of a list. ``total_count`` counts all items that match, on every page."""

    total_count: int
    items: list[dict[str, Any]] = field(default_factory=list)
    fields: tuple[str, ...] = ()


class Paging(TypedDict, total=False):
    """Selects a part of a list. ``filter`` and ``order`` are in the mini-language of the wire contract 3.1."""

    page_offset: int
    page_size: int
    filter: str | None
    order: str | None


def _write_operation(kind: str, root_field: str, arguments: Arguments, selection: str) -> tuple[str, dict[str, Any]]:
    """Returns the text of a query or mutation of one root field, and its variables."""
    given_arguments = {name: argument for name, argument in arguments.items() if argument[1] is not None}
    declarations = ", ".join(f"${name}: {type_}" for name, (type_, _) in given_arguments.items())
    passed_arguments = ", ".join(f"{name}: ${name}" for name in given_arguments)
    operation_head = (
        f"{kind}({declarations}) {{ {root_field}({passed_arguments})" if given_arguments else f"{kind} {{ {root_field}"
    )
    return f"{operation_head} {{ {selection} }} }}", {name: value for name, (_, value) in given_arguments.items()}


class AsyncAdmin(Remote):
    """Sends GraphQL queries that the caller has written (``api_session.Admin``)."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def query(self, query: str, variables: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns the ``data`` of a GraphQL query.

        Raises BackendAPIError if the server refused it, or answered with GraphQL errors (code ``graphql-error``).
        """
        return (await self._run_query(query, variables))[0]

    async def _run_query(
        self, query: str, variables: Mapping[str, Any] | None
    ) -> tuple[dict[str, Any], Mapping[str, Mapping[str, Any]]]:
        """Returns the data of a GraphQL answer, and the problems of refused mutations by the mutations' names."""
        body = {"query": query, "variables": dict(variables or {})}
        client_token = new_token() if query.lstrip().startswith("mutation") else None
        call = Call(method="POST", path="/admin/gql", json=body, repeatable=True, token=client_token)
        reply = (await self._transport.request(call)).object()
        errors = reply.get("errors")
        if errors:
            message = "; ".join(str(error.get("message", error)) for error in errors)
            problem = {"type": "https://api.backend.ai/probs/graphql-error", "title": message, "data": errors}
            raise BackendAPIError(400, "GraphQL error", problem)
        data = reply.get("data")
        if not isinstance(data, dict):
            raise UnusableReply("the GraphQL answer has no data")
        return data, (reply.get("extensions") or {}).get("problems") or {}

    async def select(self, root: str, fields: Sequence[str], /, **arguments: tuple[str, Any]) -> Any:
        """Queries a root field of GraphQL and returns its value."""
        return (await self.query(*_write_operation("query", root, arguments, " ".join(fields)))).get(root)

    async def fetch_page(
        self, root: str, fields: Sequence[str], arguments: Arguments, **paging: Unpack[Paging]
    ) -> PaginatedResult:
        """Returns a page of a paginated root field, by default the first 20 items."""
        all_arguments = {
            **arguments,
            "filter": ("String", paging.get("filter")),
            "order": ("String", paging.get("order")),
            "limit": ("Int!", paging.get("page_size", 20)),
            "offset": ("Int!", paging.get("page_offset", 0)),
        }
        selection = f"items {{ {' '.join(fields)} }}", "total_count"
        page = await self.select(root, selection, **all_arguments) or {}
        return PaginatedResult(int(page.get("total_count", 0)), list(page.get("items") or []), tuple(fields))

    async def mutate(
        self,
        root: str,
        arguments: Arguments,
        input_type: str | None = None,
        props: Mapping[str, Any] | None = None,
        *,
        result: str = "",
    ) -> dict[str, Any]:
        """Runs a GraphQL mutation and returns its whole answer.

        Args:
            root: the field of the root type.
            arguments: its arguments without ``props``.
            input_type: the type of ``props``; None where the mutation takes none.
            props: fields of the input.
            result: what to select besides ``ok`` and ``msg``.

        Raises:
            BackendAPIError: with the server's sentence where it answers ``ok: false``.
        """
        if input_type is not None:
            encoded_props = {
                name: json.dumps(value) if name in _JSON_INPUT_FIELDS and not isinstance(value, str | None) else value
                for name, value in (props or {}).items()
            }
            arguments = {**arguments, "props": (f"{input_type}!", encoded_props)}
        data, problems = await self._run_query(*_write_operation("mutation", root, arguments, f"ok msg {result}"))
        reply = dict(data[root])
        if not reply["ok"]:
            problem_type = str(problems.get(root, {}).get("type", ""))
            raised_type = (
                problem_type if problem_type.endswith("/proof-required") else "https://api.backend.ai/probs/refused"
            )
            raise BackendAPIError(400, "Refused", {"type": raised_type, "title": reply["msg"], "msg": reply["msg"]})
        return reply
