"""Where the files of artifacts are fetched to and kept, and where they come from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ai.backend.common.artifacts import ArtifactType, RevisionStatus
from ai.backend.common.wire.artifacts import ImportState, MountState
from ai.backend.manager.artifacts.model import (
    ArtifactFile,
    ArtifactRegistry,
    ArtifactStorage,
    FoundArtifact,
    RevisionRow,
    UploadFile,
)

Progress: TypeAlias = Callable[[float, float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRequest:
    """What to look for.

    Attributes:
        search: a part of the name.
        author: whose.
        names: only these, as closely as can be.
        limit: of artifacts.
        closely: look at every artifact for all of its revisions, their sizes and the README; a plain list of a hub has
            none of them.
    """

    type: ArtifactType | None = None
    search: str | None = None
    author: str | None = None
    names: Sequence[str] = ()
    limit: int = 100
    closely: bool = True


Pages: TypeAlias = AsyncIterator[Sequence[FoundArtifact]]


class ArtifactGateway(Protocol):
    """The storage proxies (docs/reference/artifact-proxy-api.md).

    Every call may be repeated, also after either side was killed. Raises Unavailable while a proxy, or what is behind
    it, does not answer; an error that is not ``retryable`` stays until somebody changes something.
    """

    async def storages(self) -> Mapping[str, ArtifactStorage]:
        """Host -> storage, of every proxy that answers; first those of the proxy that has the default volume."""
        ...

    def scan(self, proxy: str, registry: ArtifactRegistry, request: ScanRequest) -> Pages:
        """What a hub has, page by page; an artifact may come again, with more of it."""
        ...

    async def begin_import(self, row: RevisionRow, *, ticket: str | None = None) -> ImportState:
        """Have the files fetched, verified and archived, or join the import of this attempt that runs.

        Args:
            ticket: of another installation, for a revision that comes from one.
        """
        ...

    async def upload(self, row: RevisionRow, files: Sequence[UploadFile]) -> Sequence[tuple[str, str]]:
        """Path and URL for each file that is to be uploaded; repeated, the URLs are new."""
        ...

    async def import_state(self, row: RevisionRow) -> ImportState | None:
        """None if the proxy knows nothing of it (any more): begin again."""
        ...

    async def remove(self, row: RevisionRow) -> None:
        """End its import, and remove its files from all storages; also right if there are none."""

    async def files(self, row: RevisionRow) -> Sequence[ArtifactFile]:
        """What is in the archive, by path."""
        ...

    async def presign(self, row: RevisionRow, path: str) -> str:
        """A URL by which anybody can fetch a file of the archive, for a while."""
        ...

    async def ticket(self, row: RevisionRow) -> str:
        """A URL by which another installation can fetch the revision, for a while."""
        ...

    async def mount(self, row: RevisionRow) -> MountState:
        """The directory on the nodes, or how far a copy is that can be mounted. Raises NotSupported."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRevision:
    """A revision as another installation tells of it."""

    status: RevisionStatus
    status_info: str | None = None


class Reservoirs(Protocol):
    """Other installations of this platform. Raises Unavailable while one does not answer, RegistryRefused for
    credentials that do not suffice, ArtifactNotFound for what is not there any more."""

    def scan(self, registry: ArtifactRegistry, request: ScanRequest) -> Pages:
        """What it has that our credentials may see."""
        ...

    async def delegate_scan(
        self, registry: ArtifactRegistry, remote_registry: str, request: ScanRequest, progress: Progress
    ) -> None:
        """Have it scan one of its own registries; returns when that is done."""

    async def revision(self, row: RevisionRow) -> RemoteRevision: ...
    async def delegate_import(self, row: RevisionRow) -> None:
        """Ask it to import a revision; returns at once, and may be repeated."""

    async def ticket(self, row: RevisionRow) -> str:
        """A URL by which our storage proxy can fetch a revision that is available there."""
        ...
