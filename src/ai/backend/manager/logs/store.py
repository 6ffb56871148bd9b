"""Declares the stores of the audit trail and of reported errors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from ai.backend.common.ids import UserId
from ai.backend.manager.logs.model import AuditQuery, AuditRecord, ErrorReport, StoredAuditRecord, StoredError
from ai.backend.manager.query.model import Page


class AuditStore(Protocol):
    """Stores the audit trail."""

    async def append(self, records: Sequence[AuditRecord]) -> None: ...
    async def recent(self, limit: int) -> list[AuditRecord]: ...

    async def records(self, query: AuditQuery) -> list[StoredAuditRecord]:
        """Returns the audit records that a query selects, newest first."""
        ...


class ErrorLogStore(Protocol):
    """Stores reported errors."""

    async def add_error(self, report: ErrorReport, *, max_count: int) -> int:
        """Stores an error report and returns its id; keeps only the newest ``max_count`` reports of its user."""
        ...

    async def errors(
        self,
        *,
        limit: int,
        offset: int,
        user_id: UserId | None = None,
        domain_name: str | None = None,
        mark_read: bool = False,
    ) -> Page[StoredError]:
        """Returns a page of errors that are not cleared, newest first; ``mark_read`` marks the returned
        errors as read.
        """
        ...

    async def clear_error(
        self, error_id: int, *, user_id: UserId | None = None, domain_name: str | None = None
    ) -> bool:
        """Clears an error that matches the filters, or returns False if there is no such error."""
        ...

    async def purge_errors(self, *, before: datetime) -> None: ...
