"""Uploads artifacts: clients put files to the storage proxy, then the normal import follows.

A revision is PULLING as soon as its files are announced; the import waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from ai.backend.common.artifacts import ArtifactType, RegistryType, RevisionStatus
from ai.backend.common.errors import Conflict, InvalidInput, InvalidName
from ai.backend.common.volume_paths import FolderPath
from ai.backend.common.wire.artifacts import UploadFile
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.artifacts.gateway import ArtifactGateway
from ai.backend.manager.artifacts.imports import ImportService
from ai.backend.manager.artifacts.model import MAX_WORD, ArtifactRegistry, FoundArtifact, FoundRevision, RevisionRow
from ai.backend.manager.artifacts.registries import RegistryService
from ai.backend.manager.artifacts.store import ArtifactStore


def _is_id(word: str) -> bool:
    try:
        UUID(word)
    except ValueError:
        return False
    return True


def _check_word(word: str, field: str) -> None:
    if _is_id(word):
        raise InvalidName(f"The {field} of an artifact is no id.", data={field: "reserved"})
    dots = {"", ".", ".."} & set(word.split("/"))
    if not 1 <= len(word) <= MAX_WORD or not word.isprintable() or "@" in word or word != word.strip() or dots:
        raise InvalidName(
            f"The {field} of an artifact is 1 to {MAX_WORD} characters, without @, without a blank at either end, "
            "and not a path with empty parts or dots.",
            data={field: "malformed"},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadService:
    """Announces uploads, whose files clients put to the storage proxy."""

    store: ArtifactStore
    gateway: ArtifactGateway
    registries: RegistryService
    imports: ImportService
    clock: Clock
    id_generator: IdGenerator

    async def begin(
        self,
        caller: Caller,
        registry_ref: str,
        *,
        kind: ArtifactType,
        name: str,
        version: str,
        description: str,
        files: Sequence[UploadFile],
    ) -> tuple[RevisionRow, Sequence[tuple[str, str]]]:
        """Announces all files of a revision in a local registry and returns their upload URLs. May be repeated.

        Raises InvalidInput: the registry is not local; InvalidName, InvalidPath; Conflict: the revision is available
        already.
        """
        require(caller, Operation.CHANGE_ARTIFACTS)
        registry = await self.registries.find(registry_ref)
        if registry.type is not RegistryType.LOCAL:
            raise InvalidInput(
                f"Only a local registry takes uploads, and {registry.name!r} is of type {registry.type.value}.",
                data={"registry": "not local"},
            )
        _check_word(name, "name")
        _check_word(version, "version")
        for file in files:
            FolderPath.parse(file.path)
        ref = await self._record(registry, kind, name, version, description)
        [row] = await self.imports.begin(caller, [ref])
        if row.revision.status is not RevisionStatus.PULLING:
            raise Conflict(f"{row.ref} is {row.revision.status} already.", data={"status": row.revision.status.value})
        if row.revision.stages is None or row.revision.residue:
            raise Conflict(f"Old files of {row.ref} are still being removed; try again soon.")
        return row, await self.gateway.upload(row, files)

    async def _record(
        self, registry: ArtifactRegistry, kind: ArtifactType, name: str, version: str, description: str
    ) -> str:
        """Records artifact and revision; returns the id of the revision."""
        artifact = FoundArtifact(
            type=kind, name=name, description=description, revisions=[FoundRevision(version=version)]
        )
        await self.store.record(registry.id, [artifact], at=self.clock.now(), new_id=self.id_generator.uuid)
        return next(
            str(revision.id)
            for row in await self.store.find(name)
            if (row.registry.id, row.artifact.type) == (registry.id, kind)
            for revision in row.revisions
            if revision.version == version
        )
