"""Registries of artifacts, what was found in them, and how far it is on its way here."""

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
    FoundArtifact,
    Recorded,
    Revision,
    RevisionRow,
)
from ai.backend.manager.query.model import Page


class ArtifactStore(Protocol):
    """Every method is one transaction."""

    async def registries(self) -> Sequence[ArtifactRegistry]:
        """By name."""
        ...

    async def add_registry(self, registry: ArtifactRegistry) -> None:
        """Raises Conflict if its name is taken."""

    async def change_registry(self, registry_id: RegistryId, **values: Any) -> None:
        """Set fields of :class:`ArtifactRegistry`."""

    async def remove_registry(self, registry_id: RegistryId) -> None:
        """With all that was found in it. Raises Conflict while files of it are here."""

    async def record(
        self, registry_id: RegistryId, found: Sequence[FoundArtifact], *, at: datetime, mint: Callable[[], UUID]
    ) -> Recorded:
        """Write what a scan found. What is known keeps its id and status; nothing is removed.

        Raises:
            NotFound: the registry is gone.
        """
        ...

    async def page(self, query: ArtifactQuery) -> Page[ArtifactRow]: ...
    async def find(self, ref: str, *, available_only: bool = False) -> Sequence[ArtifactRow]:
        """Artifacts of that id or name, those of several registries or types included."""
        ...

    async def remove_artifact(self, artifact_id: ArtifactId) -> None:
        """With its revisions. Raises Conflict while files of it are here."""

    async def revisions(self, ids: Collection[RevisionId]) -> Sequence[RevisionRow]: ...
    async def under_way(self) -> Sequence[RevisionRow]:
        """Revisions that are being imported, and those with a residue; oldest first."""
        ...

    async def move(
        self, seen: Revision, *, at: datetime, unless_mounted: bool = False, **values: Any
    ) -> Revision | None:
        """Set fields of a revision, and count its generation up; None if it is of another generation by now.

        Raises:
            Conflict: ``unless_mounted``, and a live session mounts it.
        """
        ...
