"""Claims of the tokens of transfers (peer facts 5)."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

import msgspec


class DownloadClaims(msgspec.Struct, frozen=True, kw_only=True):
    op: ClassVar[str] = "download"
    volume: str
    vfid: str
    relpath: str
    archive: bool = False


class UploadClaims(msgspec.Struct, frozen=True, kw_only=True):
    op: ClassVar[str] = "upload"
    volume: str
    vfid: str
    relpath: str
    size: int
    session: str


class ArchiveClaims(msgspec.Struct, frozen=True, kw_only=True):
    op: ClassVar[str] = "archive"
    volume: str
    virtual_folder_id: str
    files: tuple[str, ...]
    filename: str | None = None


class ArtifactClaims(msgspec.Struct, frozen=True, kw_only=True):
    """Permits reading all files of one revision on one storage."""

    op: ClassVar[str] = "artifact"
    storage: str
    revision: UUID
    attempt: int


class ObjectClaims(msgspec.Struct, frozen=True, kw_only=True):
    """Permits reading one object of a revision."""

    op: ClassVar[str] = "get-object"
    storage: str
    revision: UUID
    key: str


class PutObjectClaims(ObjectClaims, frozen=True, kw_only=True):
    """Permits storing one object of ``size`` bytes."""

    op: ClassVar[str] = "put-object"
    size: int


Claims = DownloadClaims | UploadClaims | ArchiveClaims | ArtifactClaims | ObjectClaims | PutObjectClaims
