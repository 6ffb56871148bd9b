"""The stores of the audit trail and of reported errors in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from ai.backend.common.ids import UserId
from ai.backend.manager.db.fence import check_fence
from ai.backend.manager.logs.model import AuditRecord, ErrorReport, StoredError
from ai.backend.manager.query.model import Page


class MemoryAuditStore:
    """Implements :class:`ai.backend.manager.logs.store.AuditStore`."""

    def __init__(self) -> None:
        self._records: list[AuditRecord] = []

    async def append(self, records: Sequence[AuditRecord]) -> None:
        check_fence()
        self._records.extend(records)

    async def recent(self, limit: int) -> list[AuditRecord]:
        return list(reversed(self._records))[:limit]


class MemoryErrorLogStore:
    """Implements :class:`ai.backend.manager.logs.store.ErrorLogStore`."""

    def __init__(self) -> None:
        self._errors: dict[int, StoredError] = {}
        self._cleared: set[int] = set()
        self._last = 0

    async def add_error(self, report: ErrorReport) -> int:
        check_fence()
        self._last += 1
        self._errors[self._last] = StoredError(id=self._last, report=report)
        return self._last

    async def errors(
        self,
        *,
        limit: int,
        offset: int,
        user_id: UserId | None = None,
        domain_name: str | None = None,
        mark_read: bool = False,
    ) -> Page[StoredError]:
        listed = [
            error
            for number, error in sorted(self._errors.items(), reverse=True)
            if number not in self._cleared and _within(error, user_id, domain_name)
        ]
        page = listed[offset : offset + limit]
        if mark_read:
            self._errors.update((error.id, replace(error, is_read=True)) for error in page)
        return Page(items=page, total_count=len(listed))

    async def clear_error(
        self, error_id: int, *, user_id: UserId | None = None, domain_name: str | None = None
    ) -> bool:
        check_fence()
        error = self._errors.get(error_id)
        if error is None or not _within(error, user_id, domain_name):
            return False
        self._cleared.add(error_id)
        return True

    async def purge_errors(self, *, before: datetime) -> None:
        check_fence()
        self._errors = {i: error for i, error in self._errors.items() if error.report.created_at >= before}


def _within(error: StoredError, user_id: UserId | None, domain_name: str | None) -> bool:
    return user_id in (None, error.report.user_id) and domain_name in (None, error.report.domain_name)
