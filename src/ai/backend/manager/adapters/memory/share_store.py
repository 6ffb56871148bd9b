"""What was used lately, in memory."""

from __future__ import annotations

from ai.backend.manager.model.share_history import ShareHistory


class MemoryShareStore:
    """Implements :class:`ai.backend.manager.ports.share_store.ShareStore`."""

    def __init__(self) -> None:
        self._histories: dict[str, ShareHistory] = {}

    async def history(self, resource_group: str) -> ShareHistory | None:
        return self._histories.get(resource_group)

    async def put_history(self, resource_group: str, history: ShareHistory) -> None:
        self._histories[resource_group] = history
