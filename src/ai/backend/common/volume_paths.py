"""Parses quota scopes, ids of virtual folders, and paths inside virtual folders.

Sources: spec 03-01 "Quota scopes", peer facts 5 "Path" and "VFolderID".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from ai.backend.common.errors import InvalidInput, InvalidPath

MAX_PART_BYTES = 255
MAX_PATH_BYTES = 4095


class QuotaScopeKind(StrEnum):
    USER = "user"
    PROJECT = "project"


@dataclass(frozen=True, slots=True)
class QuotaScopeId:
    """Names the user or project whose quota a folder uses: ``user:<uuid>`` or ``project:<uuid>``."""

    kind: QuotaScopeKind
    id: UUID

    @classmethod
    def parse(cls, text: str) -> QuotaScopeId:
        """Parses a quota scope id. Raises InvalidInput if it is not ``user:<uuid>`` or ``project:<uuid>``."""
        kind, _, id_ = text.partition(":")
        try:
            return cls(QuotaScopeKind(kind), UUID(id_))
        except ValueError:
            raise InvalidInput(f"{text[:64]!r} is no quota scope: write user:<uuid> or project:<uuid>.") from None

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}"


@dataclass(frozen=True, slots=True)
class VFolderId:
    """Names a virtual folder on a volume: ``<quota scope>/<32 hex digits>``."""

    scope: QuotaScopeId
    id: UUID

    @classmethod
    def parse(cls, text: str) -> VFolderId:
        """Parses a virtual folder id. Raises InvalidInput without a quota scope or a UUID after it."""
        scope, _, id_ = text.partition("/")
        try:
            return cls(QuotaScopeId.parse(scope), UUID(id_))
        except ValueError:
            raise InvalidInput(f"{text[:96]!r} is no folder id: write <quota scope>/<32 hex digits>.") from None

    def __str__(self) -> str:
        return f"{self.scope}/{self.id.hex}"


@dataclass(frozen=True, slots=True)
class FolderPath:
    """Holds a path inside a folder as a sequence of parts.

    The path of the folder itself is empty. Only ``.`` and ``//`` are removed.
    """

    parts: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> FolderPath:
        """Parses a path inside a folder.

        Raises InvalidPath if it is absolute or too long, or has ``..``, NUL or a lone surrogate.
        """
        if text.startswith("/"):
            raise InvalidPath("A path inside a folder does not begin with a slash.", data={"path": text[:256]})
        parts = tuple(part for part in text.split("/") if part not in ("", "."))
        try:
            part_bytes = [len(part.encode()) for part in parts]
        except UnicodeEncodeError:
            raise InvalidPath("A path is UTF-8.") from None
        if ".." in parts or "\0" in text:
            raise InvalidPath("A path inside a folder has no '..' and no NUL.", data={"path": text[:256]})
        if max(part_bytes, default=0) > MAX_PART_BYTES or sum(part_bytes) + len(part_bytes) > MAX_PATH_BYTES:
            raise InvalidPath(f"A path has at most {MAX_PATH_BYTES} bytes, and {MAX_PART_BYTES} in each part.")
        return cls(parts)

    @classmethod
    def check_name(cls, text: str) -> str:
        """Checks that the path is a single part, as names of new entries are, and returns the path.

        Raises InvalidPath.
        """
        path = cls.parse(text)
        if path.parts != (text,):
            raise InvalidPath("A name has no slash, and is neither empty nor '.'.", data={"name": text[:256]})
        return text

    def __truediv__(self, name: str) -> FolderPath:
        return FolderPath((*self.parts, name))

    def __str__(self) -> str:
        return "/".join(self.parts) or "."
