"""The shared configuration."""

from __future__ import annotations

from typing import Any

from ai.backend.client.func.base import ResourceClient
from ai.backend.client.portal import Facade, blocking


class AsyncEtcdConfig(ResourceClient):
    """The shared configuration, for superadmins; in the embedded cluster no etcd is behind it."""

    async def get(self, key: str, *, prefix: bool = False) -> Any:
        """Returns a value, None if there is none, or with ``prefix`` nested objects of all that is below the key."""
        return (await self._ask("get", {"key": key, "prefix": prefix})).get("result")

    async def set(self, key: str, value: Any) -> None:
        """Set a key; an object sets every key in it."""
        await self._ask("set", {"key": key, "value": value})

    async def delete(self, key: str, *, prefix: bool = False) -> None:
        await self._ask("delete", {"key": key, "prefix": prefix})

    async def _ask(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self._send("POST", f"/config/{verb}", body, repeatable=True)


class EtcdConfig(Facade[AsyncEtcdConfig]):
    """``api_session.EtcdConfig`` of a blocking session."""

    get = blocking(AsyncEtcdConfig.get)
    set = blocking(AsyncEtcdConfig.set)
    delete = blocking(AsyncEtcdConfig.delete)
