"""Stores and lists the errors that clients report (client wire contract 2.9)."""

from __future__ import annotations

from ai.backend.common.errors import NotFound
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import visibility_filter
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.logs.model import ErrorReport, StoredError
from ai.backend.manager.logs.store import ErrorLogStore
from ai.backend.manager.query.model import Page

MAX_REPORTS_PER_USER = 200
"""The number of error reports that are kept of each user. A report may have 200 KiB, and any user may send reports."""


class ErrorLogService:
    """Lists the errors that clients have reported. Users see their own, admins those of their domain, superadmins and
    monitors all.
    """

    def __init__(self, store: ErrorLogStore) -> None:
        self._store = store

    async def report(self, report: ErrorReport) -> int:
        """Stores an error report and returns its id; the oldest reports of the same user beyond a limit are deleted."""
        return await self._store.add_error(report, max_count=MAX_REPORTS_PER_USER)

    async def list(self, caller: Caller, *, limit: int, offset: int, mark_read: bool) -> Page[StoredError]:
        """Returns a page of reported errors, newest first."""
        visible_scope = visibility_filter(caller, Operation.SEE_ERRORS)
        return await self._store.errors(limit=limit, offset=offset, mark_read=mark_read, **visible_scope)

    async def clear(self, caller: Caller, error_id: int) -> None:
        """Hides a reported error from the lists. Raises NotFound."""
        if not await self._store.clear_error(error_id, **visibility_filter(caller, Operation.CLEAR_ERRORS)):
            raise NotFound("There is no such error.", data={"log_id": "unknown"})
