"""Errors that clients reported."""

from __future__ import annotations

from typing import Any

from ai.backend.client.func.base import ResourceClient
from ai.backend.client.portal import Facade, blocking


class AsyncServerLog(ResourceClient):
    """Errors that clients reported."""

    async def list(self, mark_read: bool = False, page_size: int = 20, page_no: int = 1) -> dict[str, Any]:
        """Returns ``logs``, newest first, and their ``count``; administrators see those of their domain."""
        params = {"mark_read": str(mark_read), "page_size": str(page_size), "page_no": str(page_no)}
        return await self._get("/logs/error", **params)


class ServerLog(Facade[AsyncServerLog]):
    """``api_session.ServerLog`` of a blocking session."""

    list = blocking(AsyncServerLog.list)
