"""The store of recent usage. One contract suite (tests/contract/store) runs on every implementation."""

from __future__ import annotations

from typing import Protocol

from ai.backend.manager.scheduling.model import ShareHistory


class ShareStore(Protocol):
    """Stores recent usage by resource group. Every method is one transaction."""

    async def history(self, resource_group: str) -> ShareHistory | None:
        """The latest history of a resource group, or None."""
        ...

    async def put_history(self, resource_group: str, history: ShareHistory) -> None:
        """Replace the history of a resource group."""
