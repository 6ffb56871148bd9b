"""GraphQL (spec 03-09, client wire contract 3) and the lists built on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

from ai.backend.client.exceptions import BackendAPIError, UnusableReply
from ai.backend.client.portal import Facade, blocking
from ai.backend.client.transport import Transport
from ai.backend.client.wire import Call, new_token


@dataclass(frozen=True, slots=True)
class PaginatedResult:
    """A page of a list. ``total_count`` counts all items that match, on every page."""

    total_count: int
    items: list[dict[str, Any]] = field(default_factory=list)
    fields: tuple[str, ...] = ()


class Paging(TypedDict, total=False):
    """Selects a part of a list. ``filter`` and ``order`` are in the mini-language of the wire contract 3.1."""

    page_offset: int
    page_size: int
    filter: str | None
    order: str | None


class AsyncAdmin:
    """GraphQL queries of the caller's own making."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def query(self, query: str, variables: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns the ``data`` of a GraphQL query.

        Raises:
            BackendAPIError: the server refused it, or answered with GraphQL errors (code ``graphql-error``).
        """
        body = {"query": query, "variables": dict(variables or {})}
        token = new_token() if query.lstrip().startswith("mutation") else None
        call = Call(method="POST", path="/admin/gql", json=body, repeatable=True, token=token)
        answer = (await self._transport.request(call)).object()
        errors = answer.get("errors")
        if errors:
            message = "; ".join(str(error.get("message", error)) for error in errors)
            problem = {"type": "https://api.backend.ai/probs/graphql-error", "title": message, "data": errors}
            raise BackendAPIError(400, "GraphQL error", problem)
        data = answer.get("data")
        if not isinstance(data, dict):
            raise UnusableReply("the GraphQL answer has no data")
        return data

    async def fetch_page(
        self,
        root: str,
        fields: Sequence[str],
        arguments: Mapping[str, tuple[str, Any]],
        **paging: Unpack[Paging],
    ) -> PaginatedResult:
        """Returns a page of a paginated root field, by default the first 20 items; ``arguments`` maps a name to its
        type and value (None: left out)."""
        all_arguments = {
            **arguments,
            "filter": ("String", paging.get("filter")),
            "order": ("String", paging.get("order")),
            "limit": ("Int!", paging.get("page_size", 20)),
            "offset": ("Int!", paging.get("page_offset", 0)),
        }
        present = {name: pair for name, pair in all_arguments.items() if pair[1] is not None}
        declared = ", ".join(f"${name}: {kind}" for name, (kind, _) in present.items())
        passed = ", ".join(f"{name}: ${name}" for name in present)
        query = f"query({declared}) {{ {root}({passed}) {{ items {{ {' '.join(fields)} }} total_count }} }}"
        page = (await self.query(query, {name: value for name, (_, value) in present.items()})).get(root) or {}
        return PaginatedResult(int(page.get("total_count", 0)), list(page.get("items") or []), tuple(fields))


class Admin(Facade[AsyncAdmin]):
    query = blocking(AsyncAdmin.query)
    fetch_page = blocking(AsyncAdmin.fetch_page)
