"""Declares the store of registries, artifacts and revisions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from ai.backend.common.ids import ArtifactId, RegistryId, RevisionId
from ai.backend.manager.artifacts.model import (
    ArtifactQuery,
    ArtifactRegistry,
    ArtifactRow,
    Revision,
    RevisionRow,
    ScannedArtifact,
    Viewer,
)
from ai.backend.manager.query.model import Page


class ArtifactStore(Protocol):
    """Stores registries, artifacts and revisions; every method is one transaction."""

    async def registries(self, *, viewer: Viewer | None = None) -> Sequence[ArtifactRegistry]:
        """Returns the registries sorted by name, on request only registries that name a viewer."""

    async def add_registry(self, registry: ArtifactRegistry) -> None:
        """Inserts a registry of artifacts. Raises Conflict if its name is taken."""

    async def change_registry(self, registry_id: RegistryId, **values: Any) -> None:
        """Changes fields of a registry, named as in :class:`ArtifactRegistry`."""

    async def remove_registry(self, registry_id: RegistryId) -> None:
        """Removes a registry with its artifacts. Raises Conflict while files of them are stored."""

    async def record(
        self,
        registry_id: RegistryId,
        scanned_artifacts: Sequence[ScannedArtifact],
        *,
        at: datetime,
        new_id: Callable[[], UUID],
    ) -> tuple[int, int]:
        """Stores results of a scan, and returns the numbers of new artifacts and new revisions.

        Existing rows keep id and status. Raises NotFound: the registry was removed.
        """

    async def page(self, query: ArtifactQuery) -> Page[ArtifactRow]: ...
    async def find(self, ref: str, *, viewer: Viewer | None = None) -> Sequence[ArtifactRow]:
        """Returns the artifacts of any registry and type whose id or name is ``ref``, and that the viewer may use."""

    async def viewer_ids(self, viewers: Sequence[str]) -> tuple[str, ...]:
        """Returns the given viewers, with the names of groups and the addresses of users replaced by ids.

        Accepted forms are ``group:NAME`` or ``group:ID``, ``user:EMAIL`` or ``user:ID``. Raises NotFound, or Conflict:
        several groups have the name.
        """

    async def change_artifact(self, artifact_id: ArtifactId, *, viewers: tuple[str, ...] | None) -> None:
        """Sets the viewers who may use an artifact."""

    async def remove_artifact(self, artifact_id: ArtifactId) -> None:
        """Removes an artifact with its revisions. Raises Conflict while files of it are stored."""

    async def revisions(
        self, ids: Collection[RevisionId], *, viewer: Viewer | None = None
    ) -> Sequence[RevisionRow]: ...
    async def revisions_in_progress(self) -> Sequence[RevisionRow]:
        """Returns the revisions that are being imported or have a residue, oldest first."""

    async def move(
        self, loaded_revision: Revision, *, at: datetime, unless_mounted: bool = False, **values: Any
    ) -> Revision | None:
        """Sets fields of a revision and increments its generation, or returns None if the generation has changed.

        Raises Conflict: ``unless_mounted`` and a live session mounts it.
        """
