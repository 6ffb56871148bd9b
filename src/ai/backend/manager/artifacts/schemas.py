"""Defines requests and replies about artifacts. Spec 03-17 names operations and words, but no paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ai.backend.common.artifacts import ArtifactType, RegistryType, RevisionStatus
from ai.backend.infra.http.fields import Word
from ai.backend.infra.http.routes import Schema
from ai.backend.manager.artifacts.model import EVERYONE, ArtifactFile, ImportProgress

Ref = Annotated[str, Meta(min_length=1, max_length=600)]
Credentials = Annotated[dict[Word, Annotated[str, Meta(max_length=4_096)]], Meta(max_length=8)]
Viewers = Annotated[
    list[
        Annotated[
            str,
            Meta(
                max_length=300,
                pattern="^(everyone|(domain|group|user):.+)$",
                description="everyone, or domain:, group: or user: with a name",
            ),
        ]
    ],
    Meta(max_length=256),
]
"""``everyone``, ``domain:NAME``, ``group:NAME`` or ``user:EMAIL``; groups and users also by their ids."""
ImportBytes = Annotated[int, Meta(ge=0, le=2**53)]
Storages = Annotated[dict[Word, Word], Meta(max_length=8)]


class AddRegistryBody(Schema, frozen=True):
    """The request for a new registry of artifacts.
    ``credentials``: ``token`` of a hub, ``access_key`` and ``secret_key`` of an installation. ``storages``: stage
    (download, verify, archive) -> ``proxy:storage``. ``viewers``: who may use its artifacts, except restricted ones.
    ``user_import_bytes``: the largest revision that viewers may import; 0: none.
    """

    name: Word
    type: RegistryType
    url: Annotated[str, Meta(max_length=2_048)] = ""
    credentials: Credentials = msgspec.field(default_factory=dict)
    storages: Storages = msgspec.field(default_factory=dict)
    viewers: Viewers = msgspec.field(default_factory=lambda: [EVERYONE])
    user_import_bytes: ImportBytes = 0


class ChangeRegistryBody(Schema, frozen=True):
    """Changes of a registry; omitted fields stay."""

    url: Annotated[str, Meta(max_length=2_048)] | None = None
    credentials: Credentials | None = None
    storages: Storages | None = None
    viewers: Viewers | None = None
    user_import_bytes: ImportBytes | None = None


class ChangeArtifactBody(Schema, frozen=True):
    """The new list of viewers, who may use the artifact.
    None: the viewers of its registry, or nobody if it is restricted.
    """

    viewers: Viewers | None


class FetchBody(Schema, frozen=True, kw_only=True):
    """A revision to import from a registry that is open for it; the default version is ``main``."""

    registry: Word
    name: Word
    version: Word | None = None


class ScanBody(Schema, frozen=True):
    """Selects the artifacts of a scan by type, search text, author or names.
    Without ``closely`` a hub is only listed, which is quick but has no sizes.
    """

    artifact_type: ArtifactType | None = None
    search: Word | None = None
    author: Word | None = None
    names: Annotated[list[Word], Meta(max_length=1_000)] = msgspec.field(default_factory=list)
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    closely: bool = True


class DelegateScanBody(ScanBody, frozen=True, kw_only=True):
    """A scan by another installation, of its registry ``remote_registry``."""

    remote_registry: Word


class ListQuery(Schema, frozen=True):
    """Filters: ``registry`` is a name or id; ``status`` is that of any revision; ``search`` is a part of the name."""

    artifact_type: ArtifactType | None = None
    registry: Word | None = None
    status: RevisionStatus | None = None
    search: Word | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 20
    offset: Annotated[int, Meta(ge=0, le=2**31)] = 0


class RevisionsBody(Schema, frozen=True):
    """Ids of revisions, or ``ARTIFACT[@VERSION]`` with the name or id of an artifact."""

    revisions: Annotated[list[Ref], Meta(min_length=1, max_length=1_000)]


class ImportBody(RevisionsBody, frozen=True):
    """Revisions to import; ``delegate``: the other installation imports missing ones first."""

    delegate: bool = False


class UploadFile(Schema, frozen=True, kw_only=True):
    """A file to upload; ``path`` is relative to the artifact."""

    path: Annotated[str, Meta(min_length=1, max_length=4_096)]
    size: Annotated[int, Meta(ge=0, le=2**53)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None


class UploadBody(Schema, frozen=True, kw_only=True):
    """All files of a revision in a local registry."""

    registry: Word
    artifact_type: ArtifactType = ArtifactType.MODEL
    name: Word
    version: Word
    description: Annotated[str, Meta(max_length=4_096)] = ""
    files: Annotated[list[UploadFile], Meta(min_length=1, max_length=100_000)]


class PresignBody(Schema, frozen=True):
    """Paths of the files to presign; none selects all files."""

    paths: Annotated[list[Annotated[str, Meta(max_length=4_096)]], Meta(max_length=1_000)] = msgspec.field(
        default_factory=list
    )


class RegistryItem(msgspec.Struct, frozen=True, kw_only=True):
    """A registry with the names, never the values, of its credentials."""

    id: str
    name: str
    type: str
    url: str
    credentials: list[str]
    storages: dict[str, str]
    viewers: list[str]
    user_import_bytes: int | None
    created_at: str
    modified_at: str


class RevisionItem(msgspec.Struct, frozen=True, kw_only=True):
    """A revision; ``is_outdated``: the registry has newer content of this version."""

    id: str
    artifact_id: str
    version: str
    status: str
    status_info: str | None
    status_changed: str
    remote_status: str | None
    size: int | None
    file_count: int | None
    digest: str | None
    is_outdated: bool
    storage: str | None
    progress: ImportProgress | None
    created_at: str
    last_used: str | None


class ArtifactItem(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact. ``viewers``: who may use it, for superadmins and monitors. ``restricted``: not everyone may."""

    id: str
    type: str
    name: str
    description: str
    registry: str
    registry_type: str
    extra: dict[str, Any]
    restricted: bool
    viewers: list[str] | None
    scanned_at: str
    created_at: str
    revisions: list[RevisionItem]


class ArtifactPage(msgspec.Struct, frozen=True, kw_only=True):
    items: list[ArtifactItem]
    total_count: int


class ArtifactInfo(ArtifactItem, frozen=True, kw_only=True):
    readme: str | None


class RevisionInfo(RevisionItem, frozen=True, kw_only=True):
    """A revision with its artifact and registry."""

    artifact: str
    type: str
    registry: str


class RevisionList(msgspec.Struct, frozen=True, kw_only=True):
    revisions: list[RevisionInfo]


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    revision: RevisionInfo
    files: Sequence[ArtifactFile]


class PutUrl(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    url: str


class UploadReply(msgspec.Struct, frozen=True, kw_only=True):
    """Upload URLs, one PUT request per file; the import continues when all files are uploaded."""

    revision: RevisionInfo
    files: list[PutUrl]


class TaskStarted(msgspec.Struct, frozen=True, kw_only=True):
    bgtask_id: str


class TicketReply(msgspec.Struct, frozen=True, kw_only=True):
    """The temporary URL of a revision, including the token."""

    ticket: str
