"""The server as a whole: its versions, status, scheduler and announcement, reported errors, and configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ai.backend.client.exceptions import UnusableReply
from ai.backend.client.func.base import Area
from ai.backend.client.wire import Call


class AsyncManager(Area):
    """Reads and changes the state of the manager (``api_session.Manager``). Changes are for superadmins."""

    async def status(self) -> dict[str, Any]:
        """Returns ``status`` (running or frozen) and ``active_sessions``."""
        return await self._get("/manager/status")

    async def freeze(self, *, force_kill: bool = False) -> None:
        await self._send("PUT", "/manager/status", {"status": "frozen", "force_kill": force_kill}, repeatable=True)

    async def unfreeze(self) -> None:
        await self._send("PUT", "/manager/status", {"status": "running"}, repeatable=True)

    async def get_announcement(self) -> dict[str, Any]:
        return await self._get("/manager/announcement")

    async def update_announcement(self, enabled: bool = True, message: str | None = None) -> None:
        """Sets or removes the announcement, in Markdown."""
        await self._send("POST", "/manager/announcement", {"enabled": enabled, "message": message}, repeatable=True)

    async def scheduler_op(self, op: Literal["include-agents", "exclude-agents"], args: Sequence[str]) -> None:
        """Includes agents in the scheduling of new sessions, or excludes them."""
        await self._send("POST", "/manager/scheduler/operation", {"op": op, "args": list(args)}, repeatable=True)


class AsyncSystem(Area):
    """Reads the versions of the API and the server (``api_session.System``)."""

    async def get_versions(self) -> dict[str, str]:
        """Returns ``version`` of the API and ``manager`` of the server; needs no credentials."""
        call = Call(method="GET", path="/", signed=False, repeatable=True)
        return (await self._transport.request(call)).object()

    async def get_api_version(self) -> str:
        versions = await self.get_versions()
        if "version" not in versions:
            raise UnusableReply("this endpoint does not tell its version: is it a manager?")
        return versions["version"]

    async def get_manager_version(self) -> str:
        return str((await self.get_versions()).get("manager", ""))


class AsyncServerLog(Area):
    """Lists errors that clients reported (``api_session.ServerLog``)."""

    async def list(self, mark_read: bool = False, page_size: int = 20, page_no: int = 1) -> dict[str, Any]:
        """Returns a page of the reported errors, newest first, as ``logs``, and the number on all pages as ``count``.

        Administrators see those of their domain.
        """
        return await self._get("/logs/error", mark_read=mark_read, page_size=page_size, page_no=page_no)


class AsyncEtcdConfig(Area):
    """Reads and changes the shared configuration, for superadmins (``api_session.EtcdConfig``). Embedded clusters have
    no etcd."""

    async def get(self, key: str, *, prefix: bool = False) -> Any:
        """Returns a value, None if there is none, or with ``prefix`` nested objects of all that is below the key."""
        body = {"key": key, "prefix": prefix}
        return (await self._send("POST", "/config/get", body, repeatable=True)).get("result")

    async def set(self, key: str, value: Any) -> None:
        """Sets a key; an object sets every key in it."""
        await self._send("POST", "/config/set", {"key": key, "value": value}, repeatable=True)

    async def delete(self, key: str, *, prefix: bool = False) -> None:
        await self._send("POST", "/config/delete", {"key": key, "prefix": prefix}, repeatable=True)
