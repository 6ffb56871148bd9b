"""Use cases on the errors that clients report (client wire contract 2.9)."""

from __future__ import annotations

from typing import Any

from ai.backend.common.errors import NotFound
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import scope_of
from ai.backend.manager.access.permissions import Operation, Scope
from ai.backend.manager.logs.model import ErrorReport, StoredError
from ai.backend.manager.logs.store import ErrorLogStore
from ai.backend.manager.query.model import Page


class ErrorLogService:
    """Lists reported errors: users see their own, admins those of their domain, superadmins and monitors all."""

    def __init__(self, store: ErrorLogStore) -> None:
        self._store = store

    async def report(self, report: ErrorReport) -> int:
        """Stores a report and returns its id."""
        return await self._store.add_error(report)

    async def list(self, caller: Caller, *, limit: int, offset: int, mark_read: bool) -> Page[StoredError]:
        """Returns a page of errors, newest first."""
        bounds = _bounds(caller, Operation.SEE_ERRORS)
        return await self._store.errors(limit=limit, offset=offset, mark_read=mark_read, **bounds)

    async def clear(self, caller: Caller, error_id: int) -> None:
        """Hides an error from the lists. Raises NotFound."""
        if not await self._store.clear_error(error_id, **_bounds(caller, Operation.CLEAR_ERRORS)):
            raise NotFound("There is no such error.", data={"log_id": "unknown"})


def _bounds(caller: Caller, operation: Operation) -> dict[str, Any]:
    match scope_of(caller, operation):
        case Scope.ALL:
            return {}
        case Scope.DOMAIN:
            return {"domain_name": caller.domain_name}
        case _:
            return {"user_id": caller.user_id}
