"""Base classes of the areas of the API over REST."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ai.backend.client.exceptions import BackendAPIError
from ai.backend.client.func.admin import AsyncAdmin
from ai.backend.client.transport import Transport
from ai.backend.client.wire import Call


class ResourceClient:
    """A part of the API that answers with objects."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def _get(self, path: str, **params: str) -> dict[str, Any]:
        call = Call(method="GET", path=path, params=params or None, repeatable=True)
        return (await self._transport.request(call)).object()

    async def _read(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Returns the answer to a GET, with parameters in a body, as the published client sends them."""
        call = Call(method="GET", path=path, json=body, repeatable=True)
        return (await self._transport.request(call)).json()

    async def _send(self, method: str, path: str, body: dict[str, Any], *, repeatable: bool = False) -> dict[str, Any]:
        call = Call(method=method, path=path, json=body, repeatable=repeatable)
        return (await self._transport.request(call)).object()


_STRUCTURED = frozenset(
    {
        "allowed_vfolder_hosts",
        "total_resource_slots",
        "max_pending_session_resource_slots",
        "resource_slots",
        "driver_opts",
        "scheduler_opts",
    }
)


class Mutations:
    """An area of the API that changes objects over GraphQL."""

    def __init__(self, transport: Transport) -> None:
        self._admin = AsyncAdmin(transport)

    async def mutate(
        self,
        field: str,
        arguments: Mapping[str, tuple[str, Any]],
        kind: str | None = None,
        props: Mapping[str, Any] | None = None,
        *,
        result: str = "",
    ) -> dict[str, Any]:
        """Runs a mutation and returns its whole answer.

        Args:
            field: of the root type.
            arguments: name -> its type, and what it is.
            kind: the type of ``props``; None where the mutation takes none.
            props: fields of the input; those that are structured become JSON in a string.
            result: what to select besides ``ok`` and ``msg``.

        Raises:
            BackendAPIError: with the server's sentence where it answers ``ok: false``.
        """
        values = dict(arguments)
        if kind is not None:
            told = {
                k: json.dumps(v) if k in _STRUCTURED and v is not None and not isinstance(v, str) else v
                for k, v in (props or {}).items()
            }
            values["props"] = (f"{kind}!", told)
        types = ", ".join(f"${name}: {type_}" for name, (type_, _) in values.items())
        passed = ", ".join(f"{name}: ${name}" for name in values)
        query = f"mutation({types}) {{ {field}({passed}) {{ ok msg {result} }} }}"
        answer = dict((await self._admin.query(query, {name: value for name, (_, value) in values.items()}))[field])
        if not answer["ok"]:
            problem = {"type": "https://api.backend.ai/probs/refused", "title": answer["msg"], "msg": answer["msg"]}
            raise BackendAPIError(400, "Refused", problem)
        return answer
