"""Defines the vocabulary of virtual folders (spec 03-01 "Storage Management", 03-07, 03-08, peer facts 5)."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from ai.backend.common.errors import InvalidInput, InvalidName
from ai.backend.common.ids import FolderId


class FolderPermission(StrEnum):
    """The permission of a user on a virtual folder; ``rw`` and ``wd`` (write and delete) do not differ (spec 03-07)."""

    READ_ONLY = "ro"
    READ_WRITE = "rw"
    WRITE_DELETE = "wd"

    @property
    def allows_writing(self) -> bool:
        return self is not FolderPermission.READ_ONLY


class UsageMode(StrEnum):
    GENERAL = "general"
    MODEL = "model"
    DATA = "data"


class FolderOwnership(StrEnum):
    USER = "user"
    GROUP = "group"


class FolderStatus(StrEnum):
    """The status of a virtual folder: being created or filled, ready, failed, in the trash, or deleted.

    ``performing`` is being created, ``cloning`` is being filled from another folder.
    """

    READY = "ready"
    PERFORMING = "performing"
    CLONING = "cloning"
    ERROR = "error"
    DELETE_PENDING = "delete-pending"
    DELETE_ONGOING = "delete-ongoing"
    DELETE_ERROR = "delete-error"
    DELETE_COMPLETE = "delete-complete"

    @property
    def is_live(self) -> bool:
        """Returns True if the folder has a name and counts against its owner's limit."""
        return self not in DELETED_FOLDER_STATUSES


DELETED_FOLDER_STATUSES = frozenset(
    {
        FolderStatus.DELETE_PENDING,
        FolderStatus.DELETE_ONGOING,
        FolderStatus.DELETE_ERROR,
        FolderStatus.DELETE_COMPLETE,
    }
)


class HostPermission(StrEnum):
    """The operations that a domain, group or keypair policy allows on a volume (spec 03-02,
    ``allowed_vfolder_hosts``)."""

    CREATE = "create-vfolder"
    MODIFY = "modify-vfolder"
    DELETE = "delete-vfolder"
    MOUNT = "mount-in-session"
    UPLOAD = "upload-file"
    DOWNLOAD = "download-file"
    INVITE = "invite-others"
    SET_USER_PERMISSION = "set-user-specific-permission"


@dataclass(frozen=True, slots=True)
class FolderKey:
    """The address of a folder at a storage proxy: ``proxy:volume``, ``user:<uuid>`` or ``project:<uuid>``, and its
    id."""

    host: str
    quota_scope: str
    folder_id: FolderId

    @property
    def proxy(self) -> str:
        return self.host.partition(":")[0]

    @property
    def volume(self) -> str:
        return self.host.partition(":")[2]

    @property
    def vfid(self) -> str:
        """Returns the folder's address without its volume, as ``<quota scope>/<32 hex digits of the folder id>``."""
        return f"{self.quota_scope}/{self.folder_id.hex}"


_NAME_PATTERN = re.compile(r"[\w.](?:[\w .()+@-]*[\w.()+@-])?")
_RESERVED_NAME_PATTERN = re.compile(r"\.[a-z0-9]+(?:rc|_profile)|\.terminfo|\.jupyter|\.tmux\.conf|\.logout|\.{1,2}")
_FOLDER_ID_PATTERN = re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")


def check_folder_name(name: str) -> str:
    """Returns a folder name in Unicode's composed form. Raises InvalidName unless it is letters, digits and ``_ . - ( )
    + @``.

    It becomes the name of a directory in sessions, so it is no path, no id, and no file that a shell reads at its
    start; a leading dot mounts the folder into every session of its owner.
    """
    composed_name = unicodedata.normalize("NFC", name)
    if (
        not 1 <= len(composed_name) <= 64
        or len(composed_name.encode()) > 255
        or _NAME_PATTERN.fullmatch(composed_name) is None
    ):
        raise InvalidName(
            "A folder's name is 1 to 64 letters, digits, blanks and _ . - ( ) + @, with no blank at either end and no "
            "mark but the dot and the underscore at its beginning.",
            data={"name": "malformed"},
        )
    if _RESERVED_NAME_PATTERN.fullmatch(composed_name) or _FOLDER_ID_PATTERN.fullmatch(composed_name):
        raise InvalidName(f"{composed_name!r} may not name a folder.", data={"name": "reserved"})
    return composed_name


def parse_folder_id(text: str) -> FolderId | None:
    """Parses a folder id with or without dashes. Returns None if the text is no id."""
    return FolderId(UUID(text)) if _FOLDER_ID_PATTERN.fullmatch(text) else None


def parse_host(host: str) -> tuple[str, str]:
    """Splits a storage host ``proxy:volume`` into its two names. Raises InvalidInput for any other form."""
    proxy, colon, volume = host.partition(":")
    if not (proxy and colon and volume) or len(host) > 128 or not host.isprintable():
        raise InvalidInput(
            f"{host[:64]!r} is no storage host, which is written proxy:volume", data={"host": "malformed"}
        )
    return proxy, volume
