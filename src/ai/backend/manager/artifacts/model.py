"""Artifacts as the manager keeps them: registries, what was found in them, and its revisions (spec 03-17)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ai.backend.common.artifacts import ArtifactType, RegistryType, RevisionStatus
from ai.backend.common.ids import ArtifactId, RegistryId, RevisionId

MAX_WORD = 256
"""Characters of a name or version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Where the files of an import lie in each of its stages (spec 03-17, "Storage Mapping").

    Attributes:
        proxy: the storage proxy; all stages are on one.
        download, verify, archive: names of its storages; empty is what the proxy's own settings say.
        check: whether what came is compared with what the registry announced.
    """

    proxy: str
    download: str = ""
    verify: str = ""
    archive: str = ""
    check: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactRegistry:
    """Where artifacts come from.

    Attributes:
        url: of the hub, or of the manager of another installation; empty for a local one.
        credentials: ``token`` of a hub; ``access_key`` and ``secret_key`` of an installation. Never shown.
        storages: stage -> ``proxy:storage``, where the settings of the manager are not to hold.
    """

    id: RegistryId
    name: str
    type: RegistryType
    url: str
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    storages: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime
    modified_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRevision:
    """A revision as a scan finds it; a scan that only lists may not know its size.

    Attributes:
        digest: names the content where the registry tells it (a commit); it changes when a branch moves.
        source: what the registry must be told to give this revision.
        remote_status: how far it is in the other installation, where it comes from one.
    """

    version: str
    size: int | None = None
    file_count: int | None = None
    digest: str | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    remote_status: RevisionStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundArtifact:
    """An artifact as a scan finds it; ``extra`` is what else the registry says of it (author, tags, downloads),
    ``readme`` None where it was not looked at."""

    type: ArtifactType
    name: str
    description: str = ""
    readme: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    revisions: Sequence[FoundRevision] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """Its name is unique among those of its type and registry."""

    id: ArtifactId
    registry_id: RegistryId
    type: ArtifactType
    name: str
    description: str = ""
    readme: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    created_at: datetime
    scanned_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A version of an artifact.

    Attributes:
        generation: grows with every change of status; whoever changes one says which generation they saw.
        attempt: counts imports; the storage proxy tells them apart by it.
        residue: files of it may lie in ``stages`` that are of no use any more.
        stages: where its files are or will be; None before the first import.
        delegated: the other installation is to import it first, if it has not.
        imported_digest: of the content that is here; it differs from ``digest`` when the registry has moved on.
        began_at: of the import under way.
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
    source: Mapping[str, Any] = field(default_factory=dict)
    remote_status: RevisionStatus | None = None
    stages: Stages | None = None
    delegated: bool = False
    began_at: datetime | None = None
    created_at: datetime
    last_used: datetime | None = None

    @property
    def is_outdated(self) -> bool:
        """Whether the registry has another content by now than what is here."""
        is_here = self.status is RevisionStatus.AVAILABLE and None not in (self.digest, self.imported_digest)
        return is_here and self.digest != self.imported_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactRow:
    """An artifact with its registry and those of its revisions that the reader may see, newest first."""

    artifact: Artifact
    registry: ArtifactRegistry
    revisions: Sequence[Revision] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRow:
    """A revision with all that it belongs to."""

    revision: Revision
    artifact: Artifact
    registry: ArtifactRegistry

    @property
    def ref(self) -> str:
        """How people name it."""
        return f"{self.artifact.name}@{self.revision.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactQuery:
    """A page of artifacts by name. What is None is not asked for; ``status`` is that of any revision.

    Attributes:
        search: a part of the name, in either case.
        available_only: only artifacts and revisions that can be used.
    """

    limit: int = 20
    offset: int = 0
    type: ArtifactType | None = None
    registry_id: RegistryId | None = None
    status: RevisionStatus | None = None
    search: str | None = None
    available_only: bool = False


@dataclass(frozen=True, slots=True)
class Recorded:
    """How much of a page of a scan was new."""

    artifacts: int
    revisions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactFile:
    """A file of a revision; ``url`` is where anybody may fetch it for a while, if that was asked for."""

    path: str
    size: int
    sha256: str
    url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadFile:
    """A file that is to come; ``sha256`` None: it is not compared."""

    path: str
    size: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportProgress:
    """How far a phase of an import is, in bytes; a total of 0 is not known yet."""

    phase: str
    current: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactStorage:
    """A storage of a proxy that artifacts can lie in.

    Attributes:
        host: ``proxy:storage``.
        capabilities: ``mount``, ``presign``.
        stages: those that the proxy uses it for where nothing else is said.
    """

    host: str
    backend: str
    capabilities: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
