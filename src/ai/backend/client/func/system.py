"""Versions of the API and the server."""

from __future__ import annotations

from ai.backend.client.exceptions import UnusableReply
from ai.backend.client.func.base import ResourceClient
from ai.backend.client.portal import Facade, blocking
from ai.backend.client.wire import Call


class AsyncSystem(ResourceClient):
    """The server as a whole."""

    async def get_versions(self) -> dict[str, str]:
        """``version`` of the API and ``manager`` of the server; needs no credentials."""
        call = Call(method="GET", path="/", signed=False, repeatable=True)
        return (await self._transport.request(call)).object()

    async def get_api_version(self) -> str:
        versions = await self.get_versions()
        if "version" not in versions:
            raise UnusableReply("this endpoint does not tell its version: is it a manager?")
        return versions["version"]

    async def get_manager_version(self) -> str:
        return str((await self.get_versions()).get("manager", ""))


class System(Facade[AsyncSystem]):
    """``api_session.System`` of a blocking session."""

    get_versions = blocking(AsyncSystem.get_versions)
    get_api_version = blocking(AsyncSystem.get_api_version)
    get_manager_version = blocking(AsyncSystem.get_manager_version)
