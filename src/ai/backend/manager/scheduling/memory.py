"""Recent usage in memory."""

from __future__ import annotations

from ai.backend.manager.db.fence import check_fence
from ai.backend.manager.scheduling.model import ShareHistory


class MemoryShareStore:
    """Implements :class:`ai.backend.manager.scheduling.store.ShareStore`."""

    def __init__(self) -> None:
        self._histories: dict[str, ShareHistory] = {}

    async def history(self, resource_group: str) -> ShareHistory | None:
        return self._histories.get(resource_group)

    async def put_history(self, resource_group: str, history: ShareHistory) -> None:
        check_fence()
        self._histories[resource_group] = history
