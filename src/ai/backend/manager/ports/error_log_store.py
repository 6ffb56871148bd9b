"""Where reported errors are kept. One contract suite (tests/contract/store) runs on every implementation."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from ai.backend.common.ids import UserId
from ai.backend.manager.model.error_log import ErrorReport, KeptError
from ai.backend.manager.model.query import Page


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
