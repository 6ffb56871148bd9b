"""Use cases on the errors that clients report (client wire contract 2.9)."""

from __future__ import annotations

from ai.backend.common.errors import NotFound
from ai.backend.common.states import UserRole
from ai.backend.manager.access.caller import Caller
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
        if caller.sees_all:
            return await self._store.errors(limit=limit, offset=offset, mark_read=mark_read)
        if caller.role is UserRole.ADMIN:
            return await self._store.errors(
                limit=limit, offset=offset, domain_name=caller.domain_name, mark_read=mark_read
            )
        return await self._store.errors(limit=limit, offset=offset, user_id=caller.user_id, mark_read=mark_read)

    async def clear(self, caller: Caller, error_id: int) -> None:
        """Hides an error from the lists. Raises NotFound."""
        if caller.is_superadmin:
            is_cleared = await self._store.clear_error(error_id)
        elif caller.role is UserRole.ADMIN:
            is_cleared = await self._store.clear_error(error_id, domain_name=caller.domain_name)
        else:
            is_cleared = await self._store.clear_error(error_id, user_id=caller.user_id)
        if not is_cleared:
            raise NotFound("There is no such error.", data={"log_id": "unknown"})
