"""Messages between a manager and a storage proxy about artifacts (spec 03-17); docs/reference/artifact-proxy-api.md.

Every request is idempotent: an import by ``(revision_id, attempt)``, all others by what they name. Sizes are bytes,
times are seconds of the epoch, digests are lower-case hexadecimal.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, TypeAlias
from uuid import UUID

import msgspec

from ai.backend.common.artifacts import ArtifactType

MAX_SCAN = 1000
"""The maximum number of artifacts in the reply to a scan."""
MAX_NAMED = 50
"""The maximum number of artifacts that one scan inspects closely."""

Attempt: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Bytes: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Sha256: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=4096)]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Serves as the base of the messages that a manager sends to a storage proxy about artifacts."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Serves as the base of the messages with which a storage proxy replies about artifacts."""


class ScanRequest(Request, frozen=True, kw_only=True):
    """Requests the named artifacts of a hub with every version, size and README, or a list of artifacts.

    A list is requested if ``names`` is empty.

    ``token`` is of an account of the hub, None sees what is public. ``version`` is one branch, tag or commit.
    ``search`` is a part of the name. A list begins with what is downloaded most, and has models, or with the type
    PACKAGE data sets, whose names begin with ``datasets/``.
    """

    url: Text
    token: Text | None = None
    type: ArtifactType = ArtifactType.MODEL
    names: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_NAMED)] = ()
    version: Text | None = None
    search: Text | None = None
    author: Text | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_SCAN)] = 100


class ScannedRevision(Answer, frozen=True, kw_only=True):
    """Describes a version of an artifact that a scan has listed.

    ``digest`` is the commit; ``size`` and ``file_count`` are None in a list; ``modified`` is None if unknown.
    """

    version: str
    digest: str | None = None
    size: int | None = None
    file_count: int | None = None
    modified: float | None = None


class ScannedArtifact(Answer, frozen=True, kw_only=True):
    """Describes an artifact that a scan of a hub has listed.

    ``extra`` has author, tags, downloads, license ...; ``readme`` is None in a list. ``restricted``: the hub shows it,
    or its files, only to some accounts.
    """

    type: ArtifactType
    name: str
    description: str = ""
    readme: str | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    restricted: bool = False
    revisions: tuple[ScannedRevision, ...] = ()


class ScanAnswer(Answer, frozen=True, kw_only=True):
    """Holds the result of a scan of a hub.

    ``missing`` are the requested names that the hub does not have, or does not show.
    """

    artifacts: tuple[ScannedArtifact, ...]
    missing: tuple[str, ...] = ()


class HubSource(Request, frozen=True, kw_only=True, tag="huggingface", tag_field="type"):
    """Names a version of a model on a hub.

    The import fails with ``artifact-changed`` for another commit (``digest``) or size.
    """

    url: Text
    token: Text | None = None
    name: Text
    version: Text
    digest: Text | None = None
    size: Bytes | None = None


class ReservoirSource(Request, frozen=True, kw_only=True, tag="reservoir", tag_field="type"):
    """Names a revision of an artifact at another installation.

    ``ticket`` is the URL ``<url>?token=<token>`` of the :class:`Ticket` of its proxy.
    """

    ticket: Text


class UploadSource(Request, frozen=True, kw_only=True, tag="upload", tag_field="type"):
    """Names the files that were uploaded after an :class:`UploadRequest`."""


Source: TypeAlias = HubSource | ReservoirSource | UploadSource


class Stages(Request, frozen=True, kw_only=True):
    """Names the storage for each stage of an import: a volume or an object storage of this proxy.

    Empty means the default of the settings.
    """

    download: Text = ""
    verify: Text = ""
    archive: Text = ""


class RevisionKey(Request, frozen=True, kw_only=True):
    revision_id: UUID


class ImportKey(RevisionKey, frozen=True, kw_only=True):
    """Names an import of a revision.

    ``attempt`` grows with each new import and stays the same while one is repeated.
    """

    attempt: Attempt


class ImportRequest(ImportKey, frozen=True, kw_only=True):
    """Requests to fetch, verify and archive a revision. With ``verify`` False only sizes are compared, not contents."""

    type: ArtifactType
    name: Text
    version: Text
    source: Source
    stages: Stages = Stages()
    verify: bool = True


class ImportPhase(StrEnum):
    DOWNLOADING = "downloading"
    VERIFYING = "verifying"
    ARCHIVING = "archiving"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        return self in (ImportPhase.DONE, ImportPhase.FAILED, ImportPhase.CANCELLED)


class ImportState(Answer, frozen=True, kw_only=True):
    """Describes the progress of an import.

    ``current`` and ``total`` are bytes of this phase; totals and ``files`` are 0 until they are known. ``size`` is that
    of all files. ``digest`` is that of the source. ``notes`` are sentences for users. ``error`` is a problem document
    (RFC 7807).
    """

    revision_id: UUID
    attempt: int
    phase: ImportPhase
    current: int = 0
    total: int = 0
    files: int = 0
    storage: str = ""
    size: int | None = None
    digest: str | None = None
    notes: tuple[str, ...] = ()
    error: dict[str, Any] | None = None


class UploadFile(Request, frozen=True, kw_only=True):
    path: Text
    size: Bytes
    sha256: Sha256 | None = None


class UploadRequest(ImportKey, frozen=True, kw_only=True):
    """Requests upload URLs for all files of a revision. Repeated, it returns new URLs for the same files."""

    files: tuple[UploadFile, ...]
    stages: Stages = Stages()
    expires_s: Annotated[int, msgspec.Meta(ge=1, le=604_800)] = 3600


class PresignedFile(Answer, frozen=True, kw_only=True):
    path: str
    url: str


class UploadAnswer(Answer, frozen=True, kw_only=True):
    """The URLs to PUT each file to, in one request each; an import with an :class:`UploadSource` follows."""

    files: tuple[PresignedFile, ...]


class ArtifactPlace(RevisionKey, frozen=True, kw_only=True):
    """Names an archived artifact revision and the storage that holds it.

    An empty ``storage`` permits every storage.
    """

    storage: Text = ""


class FilesRequest(ArtifactPlace, frozen=True, kw_only=True):
    """Requests one page of the files of an archived artifact revision.

    ``cursor`` is that of the previous page.
    """

    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000
    cursor: Text | None = None


class ArtifactFile(Answer, frozen=True, kw_only=True):
    path: str
    size: int
    sha256: str


class FilesAnswer(Answer, frozen=True, kw_only=True):
    """Holds a page of a revision's files, sorted by path.

    ``file_count`` and ``size`` are those of the whole revision.
    """

    files: tuple[ArtifactFile, ...]
    cursor: str | None
    file_count: int
    size: int
    storage: str


class PresignRequest(ArtifactPlace, frozen=True, kw_only=True):
    path: Text
    expires_s: Annotated[int, msgspec.Meta(ge=1, le=604_800)] = 3600


class Ticket(Answer, frozen=True, kw_only=True):
    """Holds a URL and a token by which another installation reads a revision's :class:`Manifest`.

    The address to read is ``<url>?token=<token>``.
    """

    url: str
    token: str


class MountState(Answer, frozen=True, kw_only=True):
    """Holds the path of a revision's files on every host, for reading only.

    The path is None until ``total`` bytes are copied to a storage that hosts can mount.
    """

    path: str | None
    current: int = 0
    total: int = 0


class StorageInfo(Answer, frozen=True, kw_only=True):
    """Describes a storage of artifacts.

    ``capabilities``: ``mount``, ``presign``. ``stages``: those whose default it is.
    """

    name: str
    backend: str
    capabilities: tuple[str, ...]
    stages: tuple[str, ...]


class StoragesAnswer(Answer, frozen=True, kw_only=True):
    storages: tuple[StorageInfo, ...]


class Manifest(Answer, frozen=True, kw_only=True):
    """Lists the files of an archived revision. It is written last: a revision without a manifest does not exist.

    ``digest`` is that of the source; ``source`` names it without secrets.
    """

    revision_id: UUID
    attempt: int
    type: ArtifactType
    name: str
    version: str
    digest: str
    source: str
    archived_at: float
    files: tuple[ArtifactFile, ...]
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)
