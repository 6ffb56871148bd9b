"""Virtual folders as the manager keeps them (spec 03-07, 03-08; peer facts 4.4)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeAlias

from ai.backend.common.folders import (
    FolderKey,
    FolderOwnership,
    FolderPermission,
    FolderStatus,
    HostPermission,
    UsageMode,
)
from ai.backend.common.ids import DomainName, FolderId, GroupId, InvitationId, UserId
from ai.backend.common.volume_paths import QuotaScopeId

FolderKind: TypeAlias = Literal["own", "invited", "project"]
"""What a folder is to a user: their own, shared with them, or of one of their groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder; its files lie with a storage proxy.

    Attributes:
        host: ``proxy:volume``.
        quota_scope: ``user:<uuid>`` or ``project:<uuid>`` of the owner: names are unique in it.
        user_id, group_id: exactly one is set, as ``ownership_type`` says.
        permission: what members of the group may do, and the default of shares.
        creator: the email of whoever made it.
        cloned_from: set while it is being filled.
        max_size: bytes; None for no limit of its own.
        unmanaged_path: a directory of the nodes, in no volume; None for one that a storage proxy keeps.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderRow:
    """A folder with what a list shows besides, and what was granted to the user who asked.

    Attributes:
        owner_email: None for a group's folder.
        group_name: None for a user's folder.
        granted: the share of that user, if there is one.
    """

    folder: Folder
    owner_email: str | None = None
    group_name: str | None = None
    granted: FolderPermission | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSelection:
    """Which folders a list is about: those that are of any of the chosen ``kinds`` to one user.

    Attributes:
        user_id: None is everybody's folders, whatever ``kinds`` says.
        groups: the groups whose folders are that user's ``project`` folders.
        domain_name, group_id, owner_id: narrow further; with a ``group_id`` folders of no group stay.
    """

    user_id: UserId | None = None
    groups: frozenset[GroupId] = frozenset()
    kinds: frozenset[FolderKind] = frozenset({"own", "invited", "project"})
    domain_name: str | None = None
    group_id: GroupId | None = None
    owner_id: UserId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderAccess:
    """A folder as one user may use it.

    Attributes:
        permission: the effective one, ``wd`` for an owner.
        is_owner: it is the user's own, or that of a group which they administrate.
        controls: whether they may rename, share or delete it: owners and administrators.
        allowed: what may be done on its host (spec 03-01, "Volume-level permissions").
        is_of_store: it is a model store's: everybody reads and clones it.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateFolder:
    """A request for a folder; ``group`` (name or id) makes it a group's, ``host`` None takes the default."""

    name: str
    host: str | None = None
    group: str | None = None
    usage_mode: UsageMode = UsageMode.GENERAL
    permission: FolderPermission = FolderPermission.READ_WRITE
    cloneable: bool = False
    max_size: int | None = None
    unmanaged_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one user may do with a folder that is not theirs."""

    folder_id: FolderId
    user_id: UserId
    permission: FolderPermission
    email: str = ""


class InvitationState(StrEnum):
    PENDING = "pending"
    ACCEPTED = "accepted"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """``inviter`` and ``invitee`` are emails; ``folder_name`` is filled in by reads."""

    id: InvitationId
    folder_id: FolderId
    inviter: str
    invitee: str
    permission: FolderPermission
    state: InvitationState = InvitationState.PENDING
    created_at: datetime
    modified_at: datetime
    folder_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeUsage:
    """A quota scope on one volume.

    Attributes:
        used_bytes, file_count: what its folders hold; the count is None where the proxy does not tell it.
        limit_bytes: None is no limit.
        enforcement: ``hard`` by the volume itself, ``soft`` by accounting.
    """

    used_bytes: int
    limit_bytes: int | None
    enforcement: str
    file_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeLimit:
    """How many bytes a quota scope may have on a volume; None is no limit. ``is_own``: not by a policy."""

    host: str
    scope: QuotaScopeId
    limit_bytes: int | None
    is_own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderUsage:
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """An entry of a directory; ``mode`` is text such as ``drwxr-xr-x``, times are seconds since 1970."""

    name: str
    is_directory: bool
    size: int
    mode: str
    created: float
    modified: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """Where a client sends or fetches a file itself, and the token that lets it."""

    url: str
    token: str


class MountKind(StrEnum):
    FOLDER = "folder"
    ARTIFACT = "artifact"


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderMount:
    """A folder, or a revision of an artifact, in a session, resolved: the same in every kernel.

    Attributes:
        folder_id: the id of either.
        source: the directory on the nodes.
        target: where the session sees it, absolute.
    """

    folder_id: FolderId
    name: str
    source: str
    target: str
    read_only: bool
    kind: MountKind = MountKind.FOLDER
