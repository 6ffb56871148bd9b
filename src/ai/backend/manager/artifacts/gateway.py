"""Ports to the storage proxies that store artifacts, and to other installations that offer them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from ai.backend.common.artifacts import ArtifactType, RevisionStatus
from ai.backend.common.wire.artifacts import ImportState, MountState, UploadFile
from ai.backend.manager.artifacts.model import (
    ArtifactFile,
    ArtifactRegistry,
    ArtifactStorage,
    RevisionRow,
    ScannedArtifact,
)

Progress: TypeAlias = Callable[[float, float], Awaitable[None]]


class ScanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the artifacts of a scan.

    Attributes:
        search: a part of the name.
        author: the author or organization.
        names: scan only these, in detail.
        limit: the largest number of artifacts.
        closely: fetch all revisions, their sizes and the README of every artifact, which a list of a hub lacks.
    """

    type: ArtifactType | None = None
    search: str | None = None
    author: str | None = None
    names: Sequence[str] = ()
    limit: int = 100
    closely: bool = True


Pages: TypeAlias = AsyncIterator[Sequence[ScannedArtifact]]


class ArtifactGateway(Protocol):
    """Imports and serves artifacts by the storage proxies (docs/reference/artifact-proxy-api.md).

    Every call may be repeated, also after either side was killed. Calls raise Unavailable while a proxy or its backend
    does not answer; an error that is not ``retryable`` needs an administrator.
    """

    async def storages(self) -> Mapping[str, ArtifactStorage]:
        """Returns host -> storage for every proxy that answers; first those of the default volume's proxy."""

    def scan(self, proxy: str, registry: ArtifactRegistry, request: ScanRequest) -> Pages:
        """Yields pages of a hub's artifacts; an artifact may come again with more details."""

    async def begin_import(self, row: RevisionRow, *, ticket: str | None = None) -> ImportState:
        """Starts fetching, verifying and archiving, or joins the running import of this attempt. ``ticket``: the URL
        from another installation, for a revision that comes from one."""

    async def upload(self, row: RevisionRow, files: Sequence[UploadFile]) -> Sequence[tuple[str, str]]:
        """Returns path and upload URL of each file; a repeated call returns new URLs."""

    async def import_state(self, row: RevisionRow) -> ImportState | None:
        """Returns the state of an import, or None if the proxy does not know the import, which must begin again."""

    async def remove(self, row: RevisionRow) -> None:
        """Cancels the import and removes the files from all storages; does nothing if there are none."""

    async def files(self, row: RevisionRow) -> Sequence[ArtifactFile]:
        """Returns the archived files, sorted by path."""

    async def presign(self, row: RevisionRow, path: str) -> str:
        """Returns a temporary public URL of an archived file."""

    async def ticket(self, row: RevisionRow) -> str:
        """Returns a temporary URL by which another installation can fetch the revision."""

    async def mount(self, row: RevisionRow) -> MountState:
        """Returns the directory on the nodes, or the progress of the copy to it. Raises NotSupported."""


class RemoteRevision(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a revision in another installation."""

    status: RevisionStatus
    status_info: str | None = None


class Reservoirs(Protocol):
    """Accesses other installations of this platform. Calls raise Unavailable while one does not answer, RegistryRefused
    for insufficient credentials, and ArtifactNotFound for artifacts that were removed there."""

    def scan(self, registry: ArtifactRegistry, request: ScanRequest) -> Pages:
        """Yields pages of the artifacts that our credentials may see."""

    async def delegate_scan(
        self, registry: ArtifactRegistry, remote_registry: str, request: ScanRequest, progress: Progress
    ) -> None:
        """Makes another installation scan one of its own registries and waits for the end."""

    async def revision(self, row: RevisionRow) -> RemoteRevision: ...
    async def delegate_import(self, row: RevisionRow) -> None:
        """Makes another installation import a revision; returns at once and may be repeated."""

    async def ticket(self, row: RevisionRow) -> str:
        """Returns a URL by which our storage proxy can fetch a revision that is available there."""
