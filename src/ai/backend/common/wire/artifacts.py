"""Messages between a manager and a storage proxy about artifacts (spec 03-17).

How the calls go together is told in docs/reference/artifact-proxy-api.md.
The manager owns what artifacts there are, their status and who may use them; the proxy owns their bytes. Every request
is idempotent: an import by ``(revision_id, attempt)``, all others by what they name, so whoever was killed asks again.
Sizes are bytes, times are seconds of the epoch, digests are lower-case hexadecimal.
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
    """Base of the messages that a manager sends."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the messages that a proxy replies."""


# ---- scanning --------------------------------------------------------------------------------------------------------


class ScanRequest(Request, frozen=True, kw_only=True):
    """Look into a hub.

    Attributes:
        url: of the hub, without a path.
        token: of an account there; None sees what is public.
        names: look at these closely: every version, its size, the README. Empty: list.
        version: with ``names``, only this branch, tag or commit.
        search: part of the name, for a list.
        author: whose, for a list.
        limit: of a list, which begins with what is downloaded most.
    """

    url: Text
    token: Text | None = None
    names: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_NAMED)] = ()
    version: Text | None = None
    search: Text | None = None
    author: Text | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_SCAN)] = 100


class ScannedRevision(Answer, frozen=True, kw_only=True):
    """A version. ``digest`` is the commit; ``size`` and ``file_count`` are None in a list; ``modified`` if known."""

    version: str
    digest: str | None = None
    size: int | None = None
    file_count: int | None = None
    modified: float | None = None


class ScannedArtifact(Answer, frozen=True, kw_only=True):
    """``extra`` is what else the hub says: author, tags, downloads, license. ``readme`` is None in a list."""

    type: ArtifactType
    name: str
    description: str = ""
    readme: str | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    revisions: tuple[ScannedRevision, ...] = ()


class ScanAnswer(Answer, frozen=True, kw_only=True):
    """``missing`` are the asked names that the hub does not have, or does not show."""

    artifacts: tuple[ScannedArtifact, ...]
    missing: tuple[str, ...] = ()


# ---- importing -------------------------------------------------------------------------------------------------------


class HubSource(Request, frozen=True, kw_only=True, tag="huggingface", tag_field="type"):
    """A version of a model on a hub.

    ``digest`` is the commit and ``size`` the bytes that a scan has found: if the version has others by now, the import
    fails with ``artifact-changed``. None takes what is there.
    """

    url: Text
    token: Text | None = None
    name: Text
    version: Text
    digest: Text | None = None
    size: Bytes | None = None


class ReservoirSource(Request, frozen=True, kw_only=True, tag="reservoir", tag_field="type"):
    """A revision of another installation. ``ticket`` is the whole URL that its proxy gave out with a :class:`Ticket`:
    ``<url>?token=<token>``.
    """

    ticket: Text


class UploadSource(Request, frozen=True, kw_only=True, tag="upload", tag_field="type"):
    """What was uploaded after an :class:`UploadRequest`."""


Source: TypeAlias = HubSource | ReservoirSource | UploadSource


class Stages(Request, frozen=True, kw_only=True):
    """The storage of each stage: a volume or an object storage of this proxy; empty: as its settings say.

    ``verify`` empty is where the download lies.
    """

    download: Text = ""
    verify: Text = ""
    archive: Text = ""


class RevisionKey(Request, frozen=True, kw_only=True):
    revision_id: UUID


class ImportKey(RevisionKey, frozen=True, kw_only=True):
    """``attempt`` grows with every import of the revision that is begun anew, and stays while one is asked again."""

    attempt: Attempt


class ImportRequest(ImportKey, frozen=True, kw_only=True):
    """Fetch, verify and archive a revision. ``type``, ``name`` and ``version`` are written into its manifest.

    ``verify`` False: sizes are still compared, contents are not.
    """

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
    """How far an import is.

    Attributes:
        current, total: bytes of this phase; a total of 0 is not known yet.
        files: of the revision; 0 is not known yet.
        storage: where it is archived, or will be.
        size: bytes of all files, once it is done.
        digest: of the source: the commit, or what the other installation calls it; once it is known.
        notes: what whoever uses it should know, one sentence each; once it is done.
        error: the problem document (RFC 7807) if it failed.
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


# ---- uploading -------------------------------------------------------------------------------------------------------


class UploadFile(Request, frozen=True, kw_only=True):
    path: Text
    size: Bytes
    sha256: Sha256 | None = None


class UploadRequest(ImportKey, frozen=True, kw_only=True):
    """Take a revision's files from users: all that there will be. Repeated, it gives new URLs for the same files."""

    files: tuple[UploadFile, ...]
    stages: Stages = Stages()
    expires_s: Annotated[int, msgspec.Meta(ge=1, le=604_800)] = 3600


class PresignedFile(Answer, frozen=True, kw_only=True):
    path: str
    url: str


class UploadAnswer(Answer, frozen=True, kw_only=True):
    """PUT each file to its URL, in one request each; then import with an :class:`UploadSource`."""

    files: tuple[PresignedFile, ...]


# ---- what is archived ------------------------------------------------------------------------------------------------


class ArtifactPlace(RevisionKey, frozen=True, kw_only=True):
    """A revision that is archived. ``storage`` empty: wherever it is found."""

    storage: Text = ""


class FilesRequest(ArtifactPlace, frozen=True, kw_only=True):
    """``cursor`` is the one that the last page gave."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000
    cursor: Text | None = None


class ArtifactFile(Answer, frozen=True, kw_only=True):
    path: str
    size: int
    sha256: str


class FilesAnswer(Answer, frozen=True, kw_only=True):
    """A page, sorted by path. ``file_count`` and ``size`` are those of the whole revision."""

    files: tuple[ArtifactFile, ...]
    cursor: str | None
    file_count: int
    size: int
    storage: str


class PresignRequest(ArtifactPlace, frozen=True, kw_only=True):
    path: Text
    expires_s: Annotated[int, msgspec.Meta(ge=1, le=604_800)] = 3600


class Ticket(Answer, frozen=True, kw_only=True):
    """``<url>?token=<token>`` is the revision's :class:`Manifest`, for another installation."""

    url: str
    token: str


class MountState(Answer, frozen=True, kw_only=True):
    """Where a revision's files are on every host, read-only. ``path`` None: it is being brought to a storage that hosts
    mount, ``current`` of ``total`` bytes of it are there; ask again.
    """

    path: str | None
    current: int = 0
    total: int = 0


class StorageInfo(Answer, frozen=True, kw_only=True):
    """A storage that artifacts can lie in.

    ``capabilities``: ``mount``, ``presign``. ``stages``: those whose default it is.
    """

    name: str
    backend: str
    capabilities: tuple[str, ...]
    stages: tuple[str, ...]


class StoragesAnswer(Answer, frozen=True, kw_only=True):
    storages: tuple[StorageInfo, ...]


class Manifest(Answer, frozen=True, kw_only=True):
    """What an archived revision is. It is written last: where there is none, there is no revision.

    Attributes:
        digest: of the source.
        source: what it came from, without secrets.
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
