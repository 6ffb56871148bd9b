"""Removes or hands over the folders of purged users and groups."""

from __future__ import annotations

from ai.backend.common.errors import Conflict, FolderAlreadyExists
from ai.backend.common.folders import FolderStatus
from ai.backend.common.ids import GroupId, UserId
from ai.backend.core.lifecycle.folder import FolderTrigger
from ai.backend.manager.folders.model import Folder, FolderSelection
from ai.backend.manager.folders.store import FolderStore
from ai.backend.manager.folders.transitions import FolderTransitions
from ai.backend.manager.identity.model import User
from ai.backend.manager.query.model import Condition, ListQuery

_EXISTS = Condition(field="status", op="!=", value=FolderStatus.DELETE_COMPLETE.value)
_ALL = 1_000_000


class FolderOwnerRemoval:
    """Removes the folders of an owner. Interrupted calls may be repeated.

    Raises:
        Conflict: a live session mounts a folder, or it is being cloned.
    """

    def __init__(self, store: FolderStore, transitions: FolderTransitions) -> None:
        self._store = store
        self._transitions = transitions

    async def of_user(self, user_id: UserId, *, heir: User | None) -> None:
        """Removes the folders of a user; shared ones go to ``heir``, under another name where theirs is taken."""
        page = await self._store.page(ListQuery(limit=_ALL, filter=_EXISTS), FolderSelection(owner_id=user_id))
        folders = [row.folder for row in page.items if row.folder.user_id == user_id]
        shared = {share.folder_id for share in await self._store.shares([f.id for f in folders])}
        for folder in folders:
            if heir is not None and folder.id in shared and folder.status is FolderStatus.READY:
                await self._hand_over(folder, heir)
            else:
                await self._remove(folder)

    async def of_group(self, group_id: GroupId) -> None:
        page = await self._store.page(ListQuery(limit=_ALL, filter=_EXISTS), FolderSelection(group_id=group_id))
        for row in page.items:
            if row.folder.group_id == group_id:
                await self._remove(row.folder)

    async def _hand_over(self, folder: Folder, heir: User) -> None:
        try:
            await self._store.hand_over(folder.id, heir)
        except FolderAlreadyExists:
            await self._store.change(folder.id, name=f"{folder.name[:50]}-{str(folder.id)[:8]}")
            await self._store.hand_over(folder.id, heir)

    async def _remove(self, folder: Folder) -> None:
        moved = await self._transitions.apply(
            folder, FolderTrigger.OWNER_REMOVED, cause="removal of its owner", unless_used=folder.status.is_live
        )
        if not moved:
            raise Conflict(f"The folder {folder.name!r} was changed meanwhile; try again.")
