"""What the areas of the API over REST share."""

from __future__ import annotations

from typing import Any

from ai.backend.client.transport import Transport
from ai.backend.client.wire import Call


class Area:
    """A part of the API that answers with objects."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def _get(self, path: str, **params: str) -> dict[str, Any]:
        call = Call(method="GET", path=path, params=params or None, repeatable=True)
        return (await self._transport.request(call)).object()

    async def _read(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Whatever it answers to a GET, with parameters in a body, as the published client sends them."""
        call = Call(method="GET", path=path, json=body, repeatable=True)
        return (await self._transport.request(call)).json()

    async def _send(self, method: str, path: str, body: dict[str, Any], *, repeatable: bool = False) -> dict[str, Any]:
        call = Call(method=method, path=path, json=body, repeatable=repeatable)
        return (await self._transport.request(call)).object()
