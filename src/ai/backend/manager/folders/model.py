"""Defines virtual folders, shares, invitations and mounts (spec 03-07, 03-08; peer facts 4.4)."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec
from pydantic import Field

from ai.backend.common.folders import (
    FolderKey,
    FolderOwnership,
    FolderPermission,
    FolderStatus,
    HostPermission,
    UsageMode,
)
from ai.backend.common.ids import DomainName, FolderId, GroupId, InvitationId, UserId
from ai.backend.common.states import UserRole
from ai.backend.common.volume_paths import QuotaScopeId
from ai.backend.infra.settings import Settings

FolderKind: TypeAlias = Literal["own", "invited", "project"]
"""The relation of a folder to a user: owned by the user, shared with the user, or of one of the user's groups."""


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """Represents a virtual folder, whose files a storage proxy stores.

    Attributes:
        host: ``proxy:volume``.
        quota_scope: ``user:<uuid>`` or ``project:<uuid>`` of the owner: names are unique in it.
        user_id, group_id: exactly one is set, as ``ownership_type`` says.
        permission: the permission of group members, and the default of shares.
        creator: the email of the user who created it.
        cloned_from: set while it is being filled.
        max_size: bytes; None for no limit of its own.
        unmanaged_path: a directory of the nodes outside of volumes; None for a folder of a storage proxy.
    """

    id: FolderId
    name: str
    host: str
    quota_scope: str
    domain_name: DomainName
    ownership_type: FolderOwnership
    user_id: UserId | None = None
    group_id: GroupId | None = None
    usage_mode: UsageMode = UsageMode.GENERAL
    permission: FolderPermission = FolderPermission.READ_WRITE
    status: FolderStatus = FolderStatus.PERFORMING
    status_info: str | None = None
    status_changed: datetime
    cloneable: bool = False
    cloned_from: FolderId | None = None
    creator: str
    max_size: int | None = None
    created_at: datetime
    last_used: datetime | None = None
    unmanaged_path: str | None = None

    @property
    def key(self) -> FolderKey:
        return FolderKey(self.host, self.quota_scope, self.id)


class FolderRow(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a folder, the email and role of its user or the name of its group, and the share of the requesting user."""

    folder: Folder
    owner_email: str | None = None
    owner_role: UserRole | None = None
    group_name: str | None = None
    granted: FolderPermission | None = None


class FolderSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Selects folders for a list: folders whose relation to a user is one of ``kinds``.

    Attributes:
        user_id: None selects the folders of all users and ignores ``kinds``.
        groups: the groups whose folders are that user's ``project`` folders.
        domain_name, group_id, owner_id: further filters.
    """

    user_id: UserId | None = None
    groups: frozenset[GroupId] = frozenset()
    kinds: frozenset[FolderKind] = frozenset({"own", "invited", "project"})
    domain_name: str | None = None
    group_id: GroupId | None = None
    owner_id: UserId | None = None


class FolderAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a folder with the permissions that one user has on it.

    Attributes:
        permission: the effective one, ``wd`` for an owner.
        is_owner: the user owns it, or administrates the group that does.
        controls: the user may rename, share or delete it: owners and administrators.
        allowed: operations allowed on its host (spec 03-01, "Volume-level permissions").
        is_of_store: it belongs to a model store: everybody may read and clone it.
    """

    row: FolderRow
    permission: FolderPermission
    is_owner: bool
    controls: bool
    allowed: frozenset[HostPermission]
    is_of_store: bool = False

    @property
    def folder(self) -> Folder:
        return self.row.folder


class CreateFolder(msgspec.Struct, frozen=True, kw_only=True):
    """Requests a new folder, owned by ``group`` (name or id) if it is set, or else by the caller.

    ``host`` None means the default host.
    """

    name: str
    host: str | None = None
    group: str | None = None
    usage_mode: UsageMode = UsageMode.GENERAL
    permission: FolderPermission = FolderPermission.READ_WRITE
    cloneable: bool = False
    max_size: int | None = None
    unmanaged_path: str | None = None


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the permission of one user on the folder of another owner."""

    folder_id: FolderId
    user_id: UserId
    permission: FolderPermission
    email: str = ""


class InvitationState(StrEnum):
    """Names the states of an invitation; only a pending invitation can be answered."""

    PENDING = "pending"
    ACCEPTED = "accepted"
    REJECTED = "rejected"


class Invitation(msgspec.Struct, frozen=True, kw_only=True):
    """Represents an offer to share a folder with a user. ``inviter`` and ``invitee`` are emails; reads fill in
    ``folder_name``.
    """

    id: InvitationId
    folder_id: FolderId
    inviter: str
    invitee: str
    permission: FolderPermission
    state: InvitationState = InvitationState.PENDING
    created_at: datetime
    modified_at: datetime
    folder_name: str = ""


class ScopeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the usage and the limit (None: no limit) of a quota scope on one volume. ``enforcement`` is ``hard`` by the
    volume itself or ``soft`` by accounting.
    """

    used_bytes: int
    limit_bytes: int | None
    enforcement: str
    file_count: int | None = None


class ScopeLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the limit of a quota scope on a volume; None means no limit.

    ``is_own`` is True if the limit was set for this scope, and False if it comes from a policy.
    """

    host: str
    scope: QuotaScopeId
    limit_bytes: int | None
    is_own: bool = False


class FolderUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the number and the total size in bytes of the files of a folder."""

    files: int
    bytes: int


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an entry of a directory; ``mode`` is text such as ``drwxr-xr-x``, times are seconds since 1970."""

    name: str
    is_directory: bool
    size: int
    mode: str
    created: float
    modified: float
    accessed: float


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the URL and the token with which a client transfers a file."""

    url: str
    token: str


class MountKind(StrEnum):
    """Names the kinds of objects that sessions mount: virtual folders and artifacts."""

    FOLDER = "folder"
    ARTIFACT = "artifact"


class FolderMount(msgspec.Struct, frozen=True, kw_only=True):
    """Represents a folder or artifact revision that every kernel of a session mounts.

    The directory ``source`` of the nodes appears at ``target``.
    """

    folder_id: FolderId
    name: str
    source: str
    target: str
    read_only: bool
    kind: MountKind = MountKind.FOLDER


class FolderSettings(Settings):
    """Settings of virtual folders."""

    trash_days: float = Field(
        30.0, ge=0, description="How long a deleted folder can be restored, in days; then it is removed. 0: for ever."
    )
    unmanaged_roots: list[str] = Field(
        [],
        description="Directories of the nodes at or below which superadmins may make folders of unmanaged paths.",
    )
