"""Stores of logs: the ports."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from ai.backend.common.ids import UserId
from ai.backend.manager.logs.model import AuditRecord, ErrorReport, KeptError
from ai.backend.manager.query.model import Page


class AuditStore(Protocol):
    async def append(self, records: Sequence[AuditRecord]) -> None: ...
    async def recent(self, limit: int) -> list[AuditRecord]: ...


class ErrorLogStore(Protocol):
    async def add_error(self, report: ErrorReport) -> int:
        """Its id."""
        ...

    async def errors(
        self,
        *,
        limit: int,
        offset: int,
        user_id: UserId | None = None,
        domain_name: str | None = None,
        mark_read: bool = False,
    ) -> Page[KeptError]:
        """Newest first, without cleared ones. ``mark_read`` marks those of the page; they come as they were."""
        ...

    async def clear_error(
        self, error_id: int, *, user_id: UserId | None = None, domain_name: str | None = None
    ) -> bool:
        """Whether there was one within these bounds."""
        ...

    async def purge_errors(self, *, before: datetime) -> None: ...
