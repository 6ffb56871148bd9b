"""Declares the store of virtual folders, shares, invitations and quota limits."""

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
    """Stores virtual folders with their shares and limits; every method is one transaction."""

    async def insert(self, folder: Folder, *, max_count: int = 0) -> None:
        """Inserts a folder. Raises FolderAlreadyExists if the owner owns or shares a live folder of that name, which
        would hide it, and LimitExceeded if it owns ``max_count`` live ones already (0: no limit)."""

    async def get(self, folder_id: FolderId, *, user_id: UserId | None = None) -> FolderRow | None:
        """Returns a folder with the share of ``user_id``, or None if the folder does not exist."""
        ...

    async def accessible(
        self, user_id: UserId, group_ids: Collection[GroupId], *, name: str | None = None
    ) -> list[FolderRow]:
        """Returns the user's own folders, those shared with the user, and those of the groups, oldest first.

        Removed folders (``delete-complete``) are left out.
        """
        ...

    async def has_dotted(self, user_id: UserId) -> bool:
        """Returns True if the user owns a live folder whose name begins with a dot.

        Every session of the user mounts such folders.
        """
        ...

    async def page(self, query: ListQuery, selection: FolderSelection) -> Page[FolderRow]:
        """Returns a page of the selected folders; only live folders unless the filter names ``status``."""
        ...

    async def by_status(self, statuses: Collection[FolderStatus]) -> list[Folder]: ...

    async def expire(self, before: datetime, *, at: datetime, info: str) -> int:
        """Marks folders that were trashed before ``before`` for removal (``delete-ongoing``), and
        returns their number.
        """
        ...

    async def hand_over(self, folder_id: FolderId, new_owner: User, *, max_count: int = 0) -> None:
        """Makes the user ``new_owner`` the owner of a folder, and ends the share that the user had.

        Raises:
            Conflict: a group owns it, or it is not ``ready``, or mounted, or being cloned.
            FolderAlreadyExists: that user owns or shares a live folder of the name.
            LimitExceeded: the user would own more than ``max_count`` live ones (0: no limit).
        """

    async def move(
        self,
        folder_id: FolderId,
        allowed_statuses: Collection[FolderStatus],
        new_status: FolderStatus,
        *,
        at: datetime,
        info: str | None = None,
        unless_used: bool = False,
        max_count: int = 0,
    ) -> bool:
        """Changes the status of a folder if its present status is in ``allowed_statuses``, and returns True if it was.

        Raises:
            Conflict: ``unless_used``, and a live session mounts the folder or a clone is made of it.
            FolderAlreadyExists: the folder would be live again, but its name was taken meanwhile.
            LimitExceeded: its owner would own more than ``max_count`` live ones (0: no limit).
        """
        ...

    async def change(self, folder_id: FolderId, **values: Any) -> None:
        """Changes fields of a folder, named as in :class:`Folder`. Raises FolderAlreadyExists if the owner owns or
        shares a live folder of the new name.
        """

    async def scope_limits(self) -> list[ScopeLimit]:
        """Returns the limits of all quota scopes with folders: their own limits, or the limits of their owners'
        policies.
        """
        ...

    async def scope_limit(self, host: str, scope: QuotaScopeId) -> ScopeLimit:
        """Returns the limit of one quota scope, even if the scope has no folders."""
        ...

    async def set_scope_limit(self, host: str, scope: QuotaScopeId, limit_bytes: int | None) -> None:
        """Sets the own limit of a quota scope, or removes that limit with None."""

    async def share(self, folder_id: FolderId, user_id: UserId, permission: FolderPermission | None) -> bool:
        """Sets the share of a user on a folder, or ends it with None; returns True if the user had a share before."""
        ...

    async def shares(self, folder_ids: Collection[FolderId]) -> list[Share]: ...

    async def invite(self, invitation: Invitation) -> bool:
        """Inserts an invitation, or returns False if the user already has a pending invitation to the folder."""
        ...

    async def invitation(self, invitation_id: InvitationId) -> Invitation | None: ...
    async def invitations(self, *, inviter: str | None = None, invitee: str | None = None) -> Sequence[Invitation]:
        """Returns pending invitations to live folders, oldest first."""
        ...

    async def answer(
        self, invitation_id: InvitationId, state: InvitationState, *, at: datetime, user_id: UserId | None = None
    ) -> bool:
        """Accepts or rejects a pending invitation; if it is accepted, the user ``user_id`` gets a share of the folder.

        Returns False if the invitation is no longer pending or its folder is gone. Raises FolderAlreadyExists if the
        user uses a folder of that name.
        """
        ...

    async def amend(self, invitation_id: InvitationId, permission: FolderPermission, *, at: datetime) -> bool:
        """Changes the permission of a pending invitation; returns False if it is no longer pending."""
        ...
