"""Keeps what was used lately. One contract suite (tests/contract/store) runs on every implementation."""

from __future__ import annotations

from typing import Protocol

from ai.backend.manager.scheduling.model import ShareHistory


class ShareStore(Protocol):
    """Every method is one transaction."""

    async def history(self, resource_group: str) -> ShareHistory | None:
        """The last one; None for a group of which nothing is kept."""
        ...

    async def put_history(self, resource_group: str, history: ShareHistory) -> None:
        """In place of the last one."""
