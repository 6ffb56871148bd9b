"""REST routes of the shared configuration."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from ai.backend.infra.http.routes import Call, Schema, route
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.system.configuration import ConfigService

Key = Annotated[str, Meta(max_length=1024)]


class GetBody(Schema, frozen=True):
    key: Key
    prefix: bool = False


class SetBody(Schema, frozen=True):
    key: Key
    value: Any


class ConfigApi:
    """Routes for superadmins; others get 403."""

    def __init__(self, config: ConfigService) -> None:
        self._config = config

    @route("POST", "/config/get", body=GetBody, audited=False)
    async def get(self, call: Call[GetBody]) -> dict[str, Any]:
        """Return the value of a key, or with ``prefix`` the keys below it as nested objects."""
        return {"result": await self._config.get(caller_of(call), call.body.key, prefix=call.body.prefix)}

    @route("POST", "/config/set", body=SetBody)
    async def set(self, call: Call[SetBody]) -> dict[str, str]:
        """Set a key; an object sets every key in it, all or nothing."""
        await self._config.set(caller_of(call), call.body.key, call.body.value)
        return {"result": "ok"}

    @route("POST", "/config/delete", body=GetBody)
    async def delete(self, call: Call[GetBody]) -> dict[str, str]:
        """Remove a key, or with ``prefix`` all at and below it."""
        await self._config.delete(caller_of(call), call.body.key, prefix=call.body.prefix)
        return {"result": "ok"}
