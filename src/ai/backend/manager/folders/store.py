"""Virtual folders, who shares them, and who is invited."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Protocol

from ai.backend.common.folders import FolderPermission, FolderStatus
from ai.backend.common.ids import FolderId, GroupId, InvitationId, UserId
from ai.backend.common.volume_paths import QuotaScopeId
from ai.backend.manager.folders.model import (
    Folder,
    FolderRow,
    FolderSelection,
    Invitation,
    InvitationState,
    ScopeLimit,
    Share,
)
from ai.backend.manager.identity.model import User
from ai.backend.manager.query.model import ListQuery, Page


class FolderStore(Protocol):
    """Every method is one transaction."""

    async def insert(self, folder: Folder, *, max_count: int = 0) -> None:
        """Raises FolderAlreadyExists if the owner has, or shares, a live folder of that name, which would hide it;
        LimitExceeded if it has ``max_count`` live ones already (0: no limit)."""

    async def get(self, folder_id: FolderId, *, user_id: UserId | None = None) -> FolderRow | None:
        """``user_id`` is whose share is looked up."""
        ...

    async def accessible(
        self, user_id: UserId, group_ids: Collection[GroupId], *, name: str | None = None
    ) -> list[FolderRow]:
        """The user's own folders, those of the groups, and those shared with the user, oldest first; gone ones
        (``delete-complete``) are left out."""
        ...

    async def page(self, query: ListQuery, selection: FolderSelection) -> Page[FolderRow]:
        """A page of these folders. Only live ones, unless the filter speaks of ``status``."""
        ...

    async def by_status(self, statuses: Collection[FolderStatus]) -> list[Folder]: ...

    async def expire(self, before: datetime, *, at: datetime, info: str) -> int:
        """Let what was thrown away before that time be removed (``delete-ongoing``); how many folders.

        One statement decides and changes: a folder that is restored meanwhile stays, and several managers may ask.
        """
        ...

    async def hand_over(self, folder_id: FolderId, to: User, *, unless_used: bool = True, max_count: int = 0) -> None:
        """Make it the folder of another user, whose share of it ends.

        Raises:
            Conflict: it is not a user's, not ``ready``, or ``unless_used`` and something needs it now.
            FolderAlreadyExists: that user has a live folder of the name, or shares one.
            LimitExceeded: they would have more than ``max_count`` live ones (0: no limit).
        """

    async def move(
        self,
        folder_id: FolderId,
        allowed: Collection[FolderStatus],
        to: FolderStatus,
        *,
        at: datetime,
        info: str | None = None,
        unless_used: bool = False,
        max_count: int = 0,
    ) -> bool:
        """Change the status if it is one of ``allowed``; whether it was.

        Raises:
            Conflict: ``unless_used``, and a live session mounts the folder or a clone is made of it.
            FolderAlreadyExists: the folder would be live again, but its name was taken meanwhile.
            LimitExceeded: its owner would have more than ``max_count`` live ones (0: no limit).
        """
        ...

    async def change(self, folder_id: FolderId, **values: Any) -> None:
        """Set fields of :class:`Folder`. Raises FolderAlreadyExists if the owner has, or shares, a live folder of the
        new name."""

    async def scope_limits(self) -> list[ScopeLimit]:
        """What every quota scope that has folders may have: its own limit, else that of its owner's policy."""
        ...

    async def scope_limit(self, host: str, scope: QuotaScopeId) -> ScopeLimit:
        """The same for one, whether it has folders or not."""
        ...

    async def set_scope_limit(self, host: str, scope: QuotaScopeId, limit_bytes: int | None) -> None:
        """Its own limit; None is none of its own."""

    async def share(self, folder_id: FolderId, user_id: UserId, permission: FolderPermission | None) -> bool:
        """Set or, with None, end what a user may do. Whether there was a share before."""
        ...

    async def shares(self, folder_ids: Collection[FolderId]) -> list[Share]: ...

    async def invite(self, invitation: Invitation) -> bool:
        """False if that user was invited to that folder already and has not answered."""
        ...

    async def invitation(self, invitation_id: InvitationId) -> Invitation | None: ...
    async def invitations(self, *, inviter: str | None = None, invitee: str | None = None) -> Sequence[Invitation]:
        """Those without an answer, of folders that are live, oldest first."""
        ...

    async def answer(
        self, invitation_id: InvitationId, state: InvitationState, *, at: datetime, user_id: UserId | None = None
    ) -> bool:
        """Answer a pending invitation; one that is accepted becomes the share of ``user_id``. False if it is not
        pending any more, or its folder is gone. Raises FolderAlreadyExists if the user uses one of that name."""
        ...

    async def amend(self, invitation_id: InvitationId, permission: FolderPermission, *, at: datetime) -> bool:
        """Change what a pending invitation offers."""
        ...
