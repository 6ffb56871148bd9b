"""Defines artifacts with their registries and revisions (spec 03-17), and the settings of imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
from pydantic import Field, field_validator

from ai.backend.common.artifacts import ArtifactType, RegistryType, RevisionStatus
from ai.backend.common.ids import ArtifactId, DomainName, RegistryId, RevisionId, UserId
from ai.backend.infra.settings import Settings

MAX_NAME = 256
"""The largest number of characters of a name or version."""
EVERYONE = "everyone"
"""The viewer that stands for every keypair; other viewers are ``domain:NAME``, ``group:ID`` and ``user:ID``."""


class Stages(msgspec.Struct, frozen=True, kw_only=True):
    """Names the storage of each stage of an import (spec 03-17, "Storage Mapping").

    Attributes:
        proxy: the storage proxy; all stages are on one.
        download, verify, archive: names of its storages; empty takes the settings of the proxy.
        check: whether the contents are compared with what the registry announced.
    """

    proxy: str
    download: str = ""
    verify: str = ""
    archive: str = ""
    check: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactRegistry:
    """Describes a registry, from which artifacts come.

    Attributes:
        url: of the hub, or of the manager of another installation; empty for a local one.
        credentials: ``token`` of a hub; ``access_key`` and ``secret_key`` of an installation. Never shown.
        storages: stage -> ``proxy:storage``; overrides the settings of the manager.
        viewers: who may use its artifacts, except those that have viewers of their own or are restricted.
        user_import_bytes: the largest revision that a viewer may import; None: only superadmins import.
    """

    id: RegistryId
    name: str
    type: RegistryType
    url: str
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    storages: Mapping[str, str] = field(default_factory=dict)
    viewers: tuple[str, ...] = (EVERYONE,)
    user_import_bytes: int | None = None
    created_at: datetime
    modified_at: datetime


class ScannedRevision(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a revision as a scan reports it; a scan without details may lack its size.

    Attributes:
        digest: identifies the content if the registry does (a commit); it changes when a branch moves.
        source: parameters for the registry to fetch this revision.
        remote_status: its status in the other installation, if it comes from one.
    """

    version: str
    size: int | None = None
    file_count: int | None = None
    digest: str | None = None
    source: Mapping[str, Any] = msgspec.field(default_factory=dict)
    remote_status: RevisionStatus | None = None


class ScannedArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an artifact as a scan reports it. ``extra`` has author, tags, downloads; ``readme`` is None if not
    fetched. ``restricted``: the registry shows it only to some accounts.
    """

    type: ArtifactType
    name: str
    description: str = ""
    readme: str | None = None
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)
    restricted: bool = False
    revisions: Sequence[ScannedRevision] = ()


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """Represents an artifact, whose name is unique within its type and registry.

    Attributes:
        restricted: the registry shows it only to some accounts.
        viewers: who may use it; None: nobody if it is restricted, else the viewers of its registry.
    """

    id: ArtifactId
    registry_id: RegistryId
    type: ArtifactType
    name: str
    description: str = ""
    readme: str | None = None
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)
    restricted: bool = False
    viewers: tuple[str, ...] | None = None
    created_at: datetime
    scanned_at: datetime


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """Represents one version of an artifact.

    Attributes:
        generation: grows with every change; an update names the generation that it read.
        attempt: the number of the import, by which the storage proxy distinguishes imports.
        residue: useless files may remain in ``stages``.
        stages: the storages of its files; None before the first import.
        delegated: the other installation imports it first if necessary.
        imported_digest: digest of the stored content; differs from ``digest`` if the registry has a newer one.
        began_at: start of the running import.
    """

    id: RevisionId
    artifact_id: ArtifactId
    version: str
    status: RevisionStatus = RevisionStatus.SCANNED
    status_info: str | None = None
    status_changed: datetime
    generation: int = 0
    attempt: int = 0
    residue: bool = False
    size: int | None = None
    file_count: int | None = None
    digest: str | None = None
    imported_digest: str | None = None
    source: Mapping[str, Any] = msgspec.field(default_factory=dict)
    remote_status: RevisionStatus | None = None
    stages: Stages | None = None
    delegated: bool = False
    began_at: datetime | None = None
    created_at: datetime
    last_used: datetime | None = None

    @property
    def is_outdated(self) -> bool:
        """Returns True if the registry has newer content than the stored revision."""
        is_stored = self.status is RevisionStatus.AVAILABLE and None not in (self.digest, self.imported_digest)
        return is_stored and self.digest != self.imported_digest


class ArtifactRow(msgspec.Struct, frozen=True, kw_only=True):
    """Holds an artifact, its registry, and the revisions that the caller may see (newest first)."""

    artifact: Artifact
    registry: ArtifactRegistry
    revisions: Sequence[Revision] = ()


class RevisionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a revision with its artifact and registry."""

    revision: Revision
    artifact: Artifact
    registry: ArtifactRegistry

    @property
    def ref(self) -> str:
        """Returns the reference ``NAME@VERSION`` of the revision."""
        return f"{self.artifact.name}@{self.revision.version}"


def viewers_of(artifact: Artifact, registry: ArtifactRegistry) -> tuple[str, ...]:
    """Returns the viewers who may use the available revisions of an artifact, besides superadmins and monitors."""
    if artifact.viewers is not None:
        return artifact.viewers
    return () if artifact.restricted else registry.viewers


class Viewer(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the ids by which a user's right to see artifacts is checked, for users who do not see all artifacts.

    Such a user sees only available revisions of artifacts that are open to the user, a group or the domain.
    """

    user_id: UserId
    domain_name: DomainName


class ArtifactQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Selects a page of artifacts. None is no filter; ``status`` is that of any revision. ``search``: a part of the
    name, in either case. ``viewer``: only what this user may use."""

    limit: int = 20
    offset: int = 0
    type: ArtifactType | None = None
    registry_id: RegistryId | None = None
    status: RevisionStatus | None = None
    search: str | None = None
    viewer: Viewer | None = None


class ArtifactFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a revision; ``url`` is a temporary public URL, if requested."""

    path: str
    size: int
    sha256: str
    url: str | None = None


class ImportProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the current phase of an import; a total of 0 is unknown."""

    phase: str
    current: int
    total: int


class ArtifactStorage(msgspec.Struct, frozen=True, kw_only=True):
    """A storage of a proxy for artifacts.

    Attributes:
        host: ``proxy:storage``.
        capabilities: ``mount``, ``presign``.
        stages: the stages that use it by default.
    """

    host: str
    backend: str
    capabilities: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()


class ArtifactSettings(Settings):
    """Settings of imports of artifacts. Storages are written proxy:storage; a registry may have others."""

    download_storage: str | None = Field(None, description="Where imports are fetched to; unset: as its proxy says.")
    verify_storage: str | None = Field(None, description="Where they are verified; unset: as its proxy says.")
    archive_storage: str | None = Field(None, description="Where they stay; unset: as its proxy says.")
    verify: bool = Field(True, description="Whether contents are compared with what the registry announced.")
    parallel: int = Field(4, ge=1, le=64, description="Imports at a time; others wait.")
    give_up_hours: float = Field(24.0, gt=0, description="How long an import is tried while somebody does not answer.")
    url_s: int = Field(3600, ge=1, le=604_800, description="How long presigned URLs are good, in seconds.")
    mount_wait_s: float = Field(
        20.0, ge=0, description="How long, in seconds, a session's creation waits for a copy that can be mounted."
    )

    @field_validator("download_storage", "verify_storage", "archive_storage")
    @classmethod
    def _check_host(cls, host: str | None) -> str | None:
        if host is not None and not all(host.partition(":")):
            raise ValueError("a storage is written proxy:storage")
        return host
