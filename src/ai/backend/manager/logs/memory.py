"""Stores of logs in memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from ai.backend.common.ids import UserId
from ai.backend.manager.db.fence import check_fence
from ai.backend.manager.logs.model import ErrorReport, KeptError
from ai.backend.manager.query.model import Page


class MemoryErrorLogStore:
    """Implements :class:`ai.backend.manager.logs.store.ErrorLogStore`."""

    def __init__(self) -> None:
        self._kept: dict[int, KeptError] = {}
        self._cleared: set[int] = set()
        self._last = 0

    async def add_error(self, report: ErrorReport) -> int:
        check_fence()
        self._last += 1
        self._kept[self._last] = KeptError(id=self._last, report=report)
        return self._last

    async def errors(
        self,
        *,
        limit: int,
        offset: int,
        user_id: UserId | None = None,
        domain_name: str | None = None,
        mark_read: bool = False,
    ) -> Page[KeptError]:
        listed = [
            one
            for number, one in sorted(self._kept.items(), reverse=True)
            if number not in self._cleared and _within(one, user_id, domain_name)
        ]
        page = listed[offset : offset + limit]
        if mark_read:
            self._kept.update((one.id, replace(one, is_read=True)) for one in page)
        return Page(items=page, total_count=len(listed))

    async def clear_error(
        self, error_id: int, *, user_id: UserId | None = None, domain_name: str | None = None
    ) -> bool:
        check_fence()
        found = self._kept.get(error_id)
        if found is None or not _within(found, user_id, domain_name):
            return False
        self._cleared.add(error_id)
        return True

    async def purge_errors(self, *, before: datetime) -> None:
        check_fence()
        self._kept = {i: one for i, one in self._kept.items() if one.report.created_at >= before}


def _within(one: KeptError, user_id: UserId | None, domain_name: str | None) -> bool:
    return user_id in (None, one.report.user_id) and domain_name in (None, one.report.domain_name)
