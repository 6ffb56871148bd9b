"""The status of the manager, its announcement and its scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ai.backend.client.func.base import ResourceClient
from ai.backend.client.portal import Facade, blocking


class AsyncManager(ResourceClient):
    """The manager daemon."""

    async def status(self) -> dict[str, Any]:
        """Returns ``status`` (running or frozen) and ``active_sessions``."""
        return await self._get("/manager/status")

    async def freeze(self, *, force_kill: bool = False) -> None:
        await self._set({"status": "frozen", "force_kill": force_kill})

    async def unfreeze(self) -> None:
        await self._set({"status": "running"})

    async def get_announcement(self) -> dict[str, Any]:
        return await self._get("/manager/announcement")

    async def update_announcement(self, enabled: bool = True, message: str | None = None) -> None:
        """Set or remove the announcement, in Markdown. For superadmins, as all changes here."""
        await self._send("POST", "/manager/announcement", {"enabled": enabled, "message": message}, repeatable=True)

    async def scheduler_op(self, op: Literal["include-agents", "exclude-agents"], args: Sequence[str]) -> None:
        """Let agents take new sessions, or none."""
        await self._send("POST", "/manager/scheduler/operation", {"op": op, "args": list(args)}, repeatable=True)

    async def _set(self, body: dict[str, Any]) -> None:
        await self._send("PUT", "/manager/status", body, repeatable=True)


class Manager(Facade[AsyncManager]):
    """``api_session.Manager`` of a blocking session."""

    status = blocking(AsyncManager.status)
    freeze = blocking(AsyncManager.freeze)
    unfreeze = blocking(AsyncManager.unfreeze)
    get_announcement = blocking(AsyncManager.get_announcement)
    update_announcement = blocking(AsyncManager.update_announcement)
    scheduler_op = blocking(AsyncManager.scheduler_op)
