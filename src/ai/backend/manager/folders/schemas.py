"""Requests and replies about virtual folders (spec 03-08, client wire contract 2.5)."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict
from uuid import UUID

import msgspec
from msgspec import Meta

from ai.backend.common.folders import FolderPermission, UsageMode
from ai.backend.common.ids import GroupId
from ai.backend.infra.http.fields import FileName, Word
from ai.backend.infra.http.routes import Schema

MAX_BYTES = 2**53 - 1
"""The largest size that clients in JavaScript can represent (spec 03-07:721)."""
Path = Annotated[str, Meta(max_length=4_096)]
FilePath = Annotated[str, Meta(min_length=1, max_length=4_096)]
"""The path of a file or directory in a folder, not that of the folder itself."""
Emails = Annotated[list[Annotated[str, Meta(max_length=256)]], Meta(min_length=1, max_length=256)]
Paths = Annotated[list[FilePath], Meta(min_length=1, max_length=1_000)]


class ListQuery(Schema, frozen=True):
    """Selects the folders of a list: ``all`` is for superadmins; ``trash`` selects deleted folders instead."""

    all: bool = False
    group_id: Word | None = None
    owner_user_email: Word | None = None
    trash: bool = False


class HostsQuery(Schema, frozen=True):
    group_id: GroupId | None = None


class CreateFolderBody(Schema, frozen=True):
    """A folder to create. ``quota`` is bytes as a number or text; 0 is none. ``group`` is a name or an id."""

    name: Annotated[str, Meta(max_length=256)]
    host: Word | None = None
    group: Word | None = None
    usage_mode: UsageMode = UsageMode.GENERAL
    permission: FolderPermission = FolderPermission.READ_WRITE
    cloneable: bool = False
    quota: Annotated[int, Meta(ge=0, le=MAX_BYTES)] | Annotated[str, Meta(max_length=32)] | None = None
    unmanaged_path: Path | None = None


CREATE_ALIASES = {
    "folder_host": "host",
    "group_id": "group",
    "groupId": "group",
    "usageMode": "usage_mode",
    "unmanagedPath": "unmanaged_path",
}


class NameQuery(Schema, frozen=True):
    name: Word


class IdQuery(Schema, frozen=True):
    """Names a folder by ``id`` or, as newer clients say, ``vfolder_id``."""

    id: Word | None = None
    vfolder_id: Word | None = None


class IdBody(Schema, frozen=True):
    id: Word


ID_ALIASES = {"vfolder_id": "id", "vfolderId": "id"}


class ModelIdQuery(Schema, frozen=True):
    """The id of the folder, which the published client repeats in the query when it deletes a model."""

    id: Word | None = None


class RenameBody(Schema, frozen=True):
    new_name: Annotated[str, Meta(max_length=256)]


class UpdateBody(Schema, frozen=True):
    cloneable: bool | None = None
    permission: FolderPermission | None = None
    usage_mode: UsageMode | None = None


class MakeDirectoryBody(Schema, frozen=True):
    path: FilePath | Paths
    parents: bool = True
    exist_ok: bool = False


class FilesQuery(Schema, frozen=True):
    """Selects files of a directory: with ``limit`` one page; ``cursor`` comes from the previous page."""

    path: Path = ""
    limit: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    cursor: Annotated[str, Meta(max_length=8_192)] | None = None


class UploadBody(Schema, frozen=True):
    path: FilePath
    size: Annotated[int, Meta(ge=0, le=2**53)]


class UploadsBody(Schema, frozen=True):
    """The paths and sizes of several files to upload."""

    files: Annotated[list[UploadBody], Meta(min_length=1, max_length=1_000)]


class DownloadsBody(Schema, frozen=True):
    """The paths of several files to download."""

    files: Annotated[list[FilePath], Meta(min_length=1, max_length=1_000)]


class DownloadBody(Schema, frozen=True):
    path: Path
    archive: bool = False


class RenameFileBody(Schema, frozen=True):
    """The path of a file or directory to rename, and its new name.

    ``is_dir`` says whether a directory is meant (spec 03-08:2424); without it, either may be.
    """

    target_path: FilePath
    new_name: FileName
    is_dir: bool | None = None


class MoveFileBody(Schema, frozen=True):
    src: FilePath
    dst: FilePath


class DeleteFilesQuery(Schema, frozen=True):
    files: Paths
    recursive: bool = False


class InviteBody(Schema, frozen=True):
    emails: Emails
    perm: FolderPermission = FolderPermission.READ_WRITE


class ShareBody(Schema, frozen=True):
    emails: Emails
    permission: FolderPermission


SHARE_ALIASES = {"user_ids": "emails", "perm": "permission"}
INVITE_ALIASES = {"user_ids": "emails", "permission": "perm"}


class UnshareQuery(Schema, frozen=True):
    emails: Emails


class InvitationBody(Schema, frozen=True):
    inv_id: UUID


class AmendBody(Schema, frozen=True):
    perm: FolderPermission


class SharedQuery(Schema, frozen=True):
    vfolder_id: Word | None = None


class SetShareBody(Schema, frozen=True):
    """The new permission of the user ``user`` on a shared folder; ``perm`` null ends the share.

    A request without ``perm`` is malformed.
    """

    vfolder: Word
    user: UUID
    perm: FolderPermission | None


class ChangeOwnerBody(Schema, frozen=True):
    """A folder (``vfolder``: id or name) and the email of its new owner."""

    vfolder: Word
    user_email: Word


class LeaveBody(Schema, frozen=True):
    shared_user_uuid: UUID | None = None


class CloneBody(Schema, frozen=True):
    """The name, host and options of a new copy of a folder; ``target_host`` null is the host of the source.

    The manual names a default of ``permission``, and 400 without it (spec 03-08:3063, 3077): the default holds.
    """

    target_name: Annotated[str, Meta(max_length=256)]
    target_host: Word | None
    permission: FolderPermission = FolderPermission.READ_WRITE
    usage_mode: UsageMode = UsageMode.GENERAL
    cloneable: bool = False


class QuotaQuery(Schema, frozen=True, kw_only=True):
    """Names the folder ``id`` whose quota scope is meant."""

    folder_host: Word | None = None
    id: Word


class QuotaInput(msgspec.Struct, frozen=True):
    size_bytes: Annotated[int, Meta(ge=0, le=MAX_BYTES)]


class QuotaBody(Schema, frozen=True, kw_only=True):
    """The limit of the quota scope of the folder ``id``."""

    folder_host: Word | None = None
    id: Word
    input: QuotaInput


class FolderItem(msgspec.Struct, frozen=True, kw_only=True):
    """The Virtual Folder List Item Object (spec 03-07, 03-08)."""

    name: str
    id: str
    host: str
    quota_scope_id: str
    status: str
    status_info: str | None
    usage_mode: str
    created_at: str
    last_used: str | None
    is_owner: bool
    permission: str
    user: str | None
    group: str | None
    creator: str
    user_email: str | None
    group_name: str | None
    ownership_type: str
    type: str
    unmanaged_path: str | None = None
    cloneable: bool
    max_files: int = 0
    max_size: int | None


class ClonedFolder(FolderItem, frozen=True, kw_only=True):
    """A new copy of a folder; the background task ``bgtask_id`` copies the files into the new folder."""

    bgtask_id: str


class FolderInfo(FolderItem, frozen=True, kw_only=True):
    """The Virtual Folder Item Object; the numbers are null where the storage proxy does not answer."""

    num_files: int | None
    numFiles: int | None  # noqa: N815  # the wire's name
    used_bytes: int | None
    cur_size: int | None


class FolderId(TypedDict):
    id: str


class UserRef(TypedDict):
    uuid: str
    email: str


ShareItem = TypedDict(
    "ShareItem",
    {
        "vfolder_id": str,
        "vfolder_name": str,
        "owner": str | None,
        "shared_by": str,
        "status": str,
        "type": str,
        "shared_to": UserRef,
        "shared-to": UserRef,
        "perm": str,
    },
)
"""A share; ``shared-to`` is the spelling of spec 03-08."""


class SharesReply(TypedDict):
    shared: list[ShareItem]


class HostsReply(TypedDict):
    """Storage hosts; ``volume_info`` is for the published Web UI."""

    default: str
    allowed: list[str]
    volume_info: dict[str, dict[str, Any]]


class QuotaUsage(TypedDict):
    quota_scope_id: str
    used_bytes: int
    limit_bytes: int | None
    enforcement: str


class SizeReply(TypedDict):
    size_bytes: int


class FileItem(TypedDict):
    """An entry of a directory; times are seconds since 1970."""

    name: str
    type: str
    size: int
    mode: str
    created: float
    modified: float


class FilesReply(TypedDict):
    """The entries of a directory, as objects in ``items`` and as JSON text in ``files``.

    ``files`` has Virtual Folder File Objects; ``error_msg`` is there if entries are not.
    """

    items: list[FileItem]
    files: str
    cursor: str | None
    error_msg: NotRequired[str]


class PathResult(TypedDict):
    item: str
    msg: str | None


class PathResults(TypedDict):
    success: list[PathResult]
    failed: list[PathResult]


class DirectoriesReply(TypedDict):
    results: PathResults


class InvitationItem(TypedDict):
    """The Virtual Folder Invitation Object (spec 03-07); ``perm`` repeats ``permission``."""

    id: str
    inviter: str
    invitee: str
    perm: str
    permission: str
    state: str
    created_at: str | None
    modified_at: str | None
    vfolder_id: str
    vfolder_name: str


class InvitationsReply(TypedDict):
    invitations: list[InvitationItem]


class InvitedReply(TypedDict):
    invited_ids: list[str]


class SharedEmailsReply(TypedDict):
    shared_emails: list[str]


class UnsharedEmailsReply(TypedDict):
    unshared_emails: list[str]


class TransferTicket(msgspec.Struct, frozen=True):
    """The URL of a transfer, to use with ``?token=``."""

    token: str
    url: str


class TransferTickets(msgspec.Struct, frozen=True):
    """The URLs of several transfers, in the order of the request."""

    tickets: list[TransferTicket]


class Message(msgspec.Struct, frozen=True):
    msg: str
