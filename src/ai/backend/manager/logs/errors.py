"""The log of errors that clients report (client wire contract 2.9)."""

from __future__ import annotations

from ai.backend.common.errors import NotFound
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import scope_of
from ai.backend.manager.access.permissions import Operation, Scope
from ai.backend.manager.logs.model import ErrorReport, KeptError
from ai.backend.manager.logs.store import ErrorLogStore
from ai.backend.manager.query.model import Page


class ErrorLogService:
    """Users see their own reports, admins those of their domain, superadmins and monitors all."""

    def __init__(self, store: ErrorLogStore) -> None:
        self._store = store

    async def report(self, report: ErrorReport) -> int:
        """Keep one; its id."""
        return await self._store.add_error(report)

    async def list(self, caller: Caller, *, limit: int, offset: int, mark_read: bool) -> Page[KeptError]:
        """Newest first."""
        scope = scope_of(caller, Operation.SEE_ERRORS)
        if scope is Scope.ALL:
            return await self._store.errors(limit=limit, offset=offset, mark_read=mark_read)
        if scope is Scope.DOMAIN:
            return await self._store.errors(
                limit=limit, offset=offset, domain_name=caller.domain_name, mark_read=mark_read
            )
        return await self._store.errors(limit=limit, offset=offset, user_id=caller.user_id, mark_read=mark_read)

    async def clear(self, caller: Caller, error_id: int) -> None:
        """List it no more. Raises NotFound."""
        scope = scope_of(caller, Operation.CLEAR_ERRORS)
        if scope is Scope.ALL:
            is_cleared = await self._store.clear_error(error_id)
        elif scope is Scope.DOMAIN:
            is_cleared = await self._store.clear_error(error_id, domain_name=caller.domain_name)
        else:
            is_cleared = await self._store.clear_error(error_id, user_id=caller.user_id)
        if not is_cleared:
            raise NotFound("There is no such error.", data={"log_id": "unknown"})
