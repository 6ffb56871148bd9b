"""Converts virtual folders to replies of the REST API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ai.backend.infra.http.fields import iso
from ai.backend.manager.folders.model import FileInfo, FolderAccess, FolderUsage, Invitation, Share
from ai.backend.manager.folders.schemas import (
    FileItem,
    FilesReply,
    FolderInfo,
    FolderItem,
    HostsReply,
    InvitationItem,
    ShareItem,
    UserRef,
)
from ai.backend.manager.volumes.model import Volume

_FOLDER_FIELDS = ("name", "host", "status_info", "creator", "unmanaged_path", "cloneable", "max_size")


def _common_fields(access: FolderAccess) -> dict[str, Any]:
    folder, row = access.folder, access.row
    return {
        **{name: getattr(folder, name) for name in _FOLDER_FIELDS},
        "id": str(folder.id),
        "quota_scope_id": folder.quota_scope,
        "status": folder.status.value,
        "usage_mode": folder.usage_mode.value,
        "created_at": iso(folder.created_at) or "",
        "last_used": iso(folder.last_used),
        "is_owner": access.is_owner,
        "permission": access.permission.value,
        "user": str(folder.user_id) if folder.user_id else None,
        "group": str(folder.group_id) if folder.group_id else None,
        "user_email": row.owner_email,
        "group_name": row.group_name,
        "ownership_type": folder.ownership_type.value,
        "type": folder.ownership_type.value,
    }


def folder_item(access: FolderAccess) -> FolderItem:
    """Converts a folder to an item of a list."""
    return FolderItem(**_common_fields(access))


def folder_info(access: FolderAccess, usage: FolderUsage | None) -> FolderInfo:
    """Converts a folder with its usage to the reply of the REST API."""
    file_count, used_bytes = (usage.files, usage.bytes) if usage is not None else (None, None)
    return FolderInfo(
        **_common_fields(access), num_files=file_count, numFiles=file_count, used_bytes=used_bytes, cur_size=used_bytes
    )


def hosts_reply(default_host: str | None, volumes: Mapping[str, Volume]) -> HostsReply:
    """Returns the storage hosts; ``default`` is text even without a host, as the published client requires."""
    return {
        "default": default_host or "",
        "allowed": list(volumes),
        "volume_info": {host: _volume_info(volume) for host, volume in volumes.items()},
    }


def _volume_info(volume: Volume) -> dict[str, Any]:
    volume_fields = {"backend": volume.backend, "capabilities": list(volume.capabilities), "usage": dict(volume.usage)}
    return {**volume_fields, "sftp_scaling_groups": []}


def listing_reply(files: Sequence[FileInfo], cursor: str | None, *, is_page: bool) -> FilesReply:
    """Returns a listing: ``files`` as JSON text for the published client, ``items`` as objects."""
    items = [
        FileItem(
            name=file.name,
            type="DIRECTORY" if file.is_directory else "FILE",
            size=file.size,
            mode=file.mode,
            created=file.created,
            modified=file.modified,
        )
        for file in files
    ]
    legacy_files = [
        {
            "filename": file.name,
            "size": file.size,
            "mode": file.mode,
            "mtime": int(file.modified),
            "ctime": int(file.created),
            "atime": int(file.accessed),
        }
        for file in files
    ]
    is_incomplete = cursor is not None and not is_page
    reply = FilesReply(items=items, files=json.dumps(legacy_files), cursor=cursor)
    if is_incomplete:
        reply["error_msg"] = f"only the first {len(items)} entries are shown"
    return reply


def mkdir_reply(problem_by_path: Mapping[str, str | None]) -> dict[str, Any]:
    """Returns the created and the failed paths in two lists, since the published client requires both lists."""
    return {
        "results": {
            "success": [{"item": path, "msg": None} for path, problem in problem_by_path.items() if problem is None],
            "failed": [
                {"item": path, "msg": problem} for path, problem in problem_by_path.items() if problem is not None
            ],
        }
    }


def invitation_item(invitation: Invitation) -> InvitationItem:
    """Converts an invitation to the Virtual Folder Invitation Object."""
    return {
        "id": str(invitation.id),
        "inviter": invitation.inviter,
        "invitee": invitation.invitee,
        "perm": invitation.permission.value,
        "permission": invitation.permission.value,
        "state": invitation.state.value,
        "created_at": iso(invitation.created_at),
        "modified_at": iso(invitation.modified_at),
        "vfolder_id": str(invitation.folder_id),
        "vfolder_name": invitation.folder_name,
    }


def share_item(access: FolderAccess, share: Share) -> ShareItem:
    shared_to: UserRef = {"uuid": str(share.user_id), "email": share.email}
    return {
        "vfolder_id": str(access.folder.id),
        "vfolder_name": access.folder.name,
        "owner": access.row.owner_email or access.row.group_name,
        "shared_by": access.row.owner_email or access.folder.creator,
        "status": access.folder.status.value,
        "type": access.folder.ownership_type.value,
        "shared_to": shared_to,
        "shared-to": shared_to,
        "perm": share.permission.value,
    }
