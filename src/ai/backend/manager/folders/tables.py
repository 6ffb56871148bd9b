"""Defines the SQL tables of virtual folders. Columns of folders and invitations are named as the fields
of the model.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, String, Table, Text, text

from ai.backend.common.folders import (
    DELETED_FOLDER_STATUSES,
    FolderOwnership,
    FolderPermission,
    FolderStatus,
    UsageMode,
)
from ai.backend.infra.database import GUID, UTCDateTime
from ai.backend.infra.database.columns import EnumText, required
from ai.backend.manager.db import metadata
from ai.backend.manager.folders.model import InvitationState

_KEEPS_NAME = text(f"status NOT IN ({', '.join(repr(status.value) for status in sorted(DELETED_FOLDER_STATUSES))})")
_IS_PENDING = text(f"state = {InvitationState.PENDING.value!r}")

folders = Table(
    "vfolders",
    metadata,
    Column("id", GUID, primary_key=True),
    required("name", String(64)),
    required("host", String(128)),
    required("quota_scope", String(64)),
    required("domain_name", String(64)),
    required("ownership_type", EnumText(FolderOwnership)),
    Column("user_id", GUID, index=True),
    Column("group_id", GUID, index=True),
    required("usage_mode", EnumText(UsageMode)),
    required("permission", EnumText(FolderPermission)),
    required("status", EnumText(FolderStatus), index=True),
    Column("status_info", Text),
    required("status_changed", UTCDateTime),
    required("cloneable", Boolean),
    Column("cloned_from", GUID),
    required("creator", String(256)),
    Column("max_size", BigInteger),
    required("created_at", UTCDateTime),
    Column("last_used", UTCDateTime),
    Column("unmanaged_path", Text),
    *(
        Index(
            f"uq_vfolders_live_name_of_{owner}",
            f"{owner}_id",
            "name",
            unique=True,
            sqlite_where=_KEEPS_NAME,
        )
        for owner in ("user", "group")
    ),
)

folder_permissions = Table(
    "vfolder_permissions",
    metadata,
    Column("folder_id", GUID, ForeignKey("vfolders.id", ondelete="CASCADE"), primary_key=True),
    Column("user_id", GUID, primary_key=True, index=True),
    required("permission", EnumText(FolderPermission)),
)

folder_invitations = Table(
    "vfolder_invitations",
    metadata,
    Column("id", GUID, primary_key=True),
    required("folder_id", GUID, ForeignKey("vfolders.id", ondelete="CASCADE")),
    required("inviter", String(256), index=True),
    required("invitee", String(256), index=True),
    required("permission", EnumText(FolderPermission)),
    required("state", EnumText(InvitationState)),
    required("created_at", UTCDateTime),
    required("modified_at", UTCDateTime),
    Index(
        "uq_vfolder_invitations_pending",
        "folder_id",
        "invitee",
        unique=True,
        sqlite_where=_IS_PENDING,
    ),
)

session_folders = Table(
    "session_vfolders",
    metadata,
    Column("session_id", GUID, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("folder_id", GUID, primary_key=True, index=True),
)

quota_limits = Table(
    "quota_limits",
    metadata,
    Column("host", String(128), primary_key=True),
    Column("quota_scope", String(64), primary_key=True),
    required("limit_bytes", BigInteger),
)
