"""Declares the interfaces to storage proxies, which keep artifacts, and to other installations that offer artifacts."""

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
    """Imports and serves artifacts through storage proxies (docs/reference/artifact-proxy-api.md).

    Every call may be repeated, also after either side was killed. Calls raise Unavailable while a proxy or its backend
    does not answer; an error that is not ``retryable`` needs an administrator.
    """

    async def storages(self) -> Mapping[str, ArtifactStorage]:
        """Returns, by storage host, the storages of all proxies that answer, beginning with the
        default volume's proxy.
        """

    def scan(self, proxy: str, registry: ArtifactRegistry, request: ScanRequest) -> Pages:
        """Yields pages of a hub's artifacts; a later page may repeat an artifact with more details."""

    async def begin_import(self, row: RevisionRow, *, ticket: str | None = None) -> ImportState:
        """Starts to fetch, verify and archive a revision, and returns the state of the import.

        Does not start again if the import of this attempt already runs.
        ``ticket``: the URL from another installation, for a revision that comes from one.
        """

    async def upload(self, row: RevisionRow, files: Sequence[UploadFile]) -> Sequence[tuple[str, str]]:
        """Returns the upload URL of each file by its path; a repeated call returns new URLs."""

    async def import_state(self, row: RevisionRow) -> ImportState | None:
        """Returns the state of an import, or None if the proxy does not know it and the import must begin again."""

    async def remove(self, row: RevisionRow) -> None:
        """Cancels the import of a revision and removes its files from all storages, if there are files."""

    async def files(self, row: RevisionRow) -> Sequence[ArtifactFile]:
        """Returns the archived files of a revision, sorted by path."""

    async def presign(self, row: RevisionRow, path: str) -> str:
        """Returns a public URL of an archived file, which is valid for some time."""

    async def ticket(self, row: RevisionRow) -> str:
        """Returns a URL, valid for some time, with which another installation can fetch the revision."""

    async def mount(self, row: RevisionRow) -> MountState:
        """Returns the directory of a revision on the nodes, or the progress of the copy to that directory. Raises
        NotSupported.
        """


class RemoteRevision(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the state of a revision in another installation."""

    status: RevisionStatus
    status_info: str | None = None


class Reservoirs(Protocol):
    """Calls other installations of this platform that offer artifacts. Calls raise Unavailable while one does not
    answer, RegistryRefused for insufficient credentials, and ArtifactNotFound for artifacts that were removed there.
    """

    def scan(self, registry: ArtifactRegistry, request: ScanRequest) -> Pages:
        """Yields pages of the artifacts that the other installation shows to our credentials."""

    async def delegate_scan(
        self, registry: ArtifactRegistry, remote_registry: str, request: ScanRequest, progress: Progress
    ) -> None:
        """Makes another installation scan one of its own registries, and waits until the scan has ended."""

    async def revision(self, row: RevisionRow) -> RemoteRevision: ...
    async def delegate_import(self, row: RevisionRow) -> None:
        """Makes another installation import a revision, without waiting for the end; a repeated call is harmless."""

    async def ticket(self, row: RevisionRow) -> str:
        """Returns a URL with which our storage proxy can fetch a revision that is available in another installation."""
