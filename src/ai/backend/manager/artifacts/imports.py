"""Begins and cancels imports and uploads, and requests the removal of their files by the loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import msgspec

from ai.backend.common.artifacts import ArtifactType, RegistryType, RevisionStatus
from ai.backend.common.errors import Conflict, InvalidInput, InvalidName
from ai.backend.common.volume_paths import FolderPath
from ai.backend.common.wire.artifacts import UploadFile
from ai.backend.core.lifecycle.artifact import RevisionTrigger
from ai.backend.core.lifecycle.transition import InvalidTransition
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.artifacts.gateway import ArtifactGateway
from ai.backend.manager.artifacts.loop import ArtifactLoop, RevisionWriter
from ai.backend.manager.artifacts.model import (
    MAX_NAME,
    ArtifactRegistry,
    ImportProgress,
    Revision,
    RevisionRow,
    ScannedArtifact,
    ScannedRevision,
)
from ai.backend.manager.artifacts.registries import RegistryService
from ai.backend.manager.artifacts.service import ArtifactService
from ai.backend.manager.artifacts.store import ArtifactStore

log = logging.getLogger(__name__)
_MAX_TRIES = 10


class ImportService(msgspec.Struct, frozen=True, kw_only=True):
    """Begins, cancels and cleans up imports of revisions on behalf of callers. ``refs`` are as for
    :meth:`ArtifactService.revision`; all are resolved before one is changed.
    """

    store: ArtifactStore
    artifacts: ArtifactService
    registries: RegistryService
    writer: RevisionWriter
    loop: ArtifactLoop
    clock: Clock

    def progress(self, revision: Revision) -> ImportProgress | None:
        """Returns the progress of a revision's import, or None if no progress is known."""
        return self.loop.progress(revision)

    async def begin(self, caller: Caller, refs: Sequence[str], *, delegate: bool = False) -> list[RevisionRow]:
        """Begins to import revisions, except revisions that are available or already being imported. ``delegate``: the
        other installation imports missing revisions first (spec 03-17, "Delegate Import").
        """
        require(caller, Operation.CHANGE_ARTIFACTS)
        return await self.begin_rows(await self._find_revisions(caller, refs), caller.stimulus_id, delegate=delegate)

    async def begin_rows(self, rows: Sequence[RevisionRow], cause: str, *, delegate: bool = False) -> list[RevisionRow]:
        """Begins to import revisions as :meth:`begin` does, for callers whose rights have been checked before."""
        stages = {}
        for row in rows:
            if delegate and row.registry.type is not RegistryType.RESERVOIR:
                raise InvalidInput(
                    f"Only another installation can import for us, and {row.ref} comes from {row.registry.name!r}.",
                    data={"delegate": "no reservoir"},
                )
            if row.registry.id not in stages:
                stages[row.registry.id] = await self.registries.stages(row.registry)

        def new_values(row: RevisionRow) -> dict[str, Any]:
            # The residue lies in the old stages; the loop sets new ones after it is removed.
            new_stages = row.revision.stages if row.revision.residue else stages[row.registry.id]
            attempt = row.revision.attempt + 1
            return {"stages": new_stages, "delegated": delegate, "began_at": self.clock.now(), "attempt": attempt}

        return [
            await self._apply_trigger(row, RevisionTrigger.IMPORT_REQUESTED, "imported", values=new_values, cause=cause)
            for row in rows
        ]

    async def cancel(self, caller: Caller, refs: Sequence[str]) -> list[RevisionRow]:
        """Cancels the imports of revisions. Raises Conflict where none is running."""
        require(caller, Operation.CHANGE_ARTIFACTS)
        rows = await self._find_revisions(caller, refs)
        trigger, cause = RevisionTrigger.CANCEL_REQUESTED, caller.stimulus_id
        return [await self._apply_trigger(row, trigger, "cancelled", info="cancelled", cause=cause) for row in rows]

    async def clean_up(self, caller: Caller, refs: Sequence[str]) -> list[RevisionRow]:
        """Removes the files of revisions but keeps their rows. Raises Conflict while a session mounts them."""
        require(caller, Operation.CHANGE_ARTIFACTS)
        rows = await self._find_revisions(caller, refs)
        trigger, cause = RevisionTrigger.CLEANUP_REQUESTED, caller.stimulus_id
        return [await self._apply_trigger(row, trigger, "cleaned up", unless_mounted=True, cause=cause) for row in rows]

    async def delete(self, caller: Caller, ref: str) -> None:
        """Removes an artifact from the list; the next scan may list the artifact again. Raises Conflict while files of
        it are stored.
        """
        require(caller, Operation.CHANGE_ARTIFACTS)
        await self.store.remove_artifact((await self.artifacts.artifact(caller, ref)).artifact.id)

    async def _find_revisions(self, caller: Caller, refs: Sequence[str]) -> list[RevisionRow]:
        rows = [await self.artifacts.revision(caller, ref) for ref in refs]
        return list({row.revision.id: row for row in rows}.values())

    async def _apply_trigger(
        self,
        row: RevisionRow,
        trigger: RevisionTrigger,
        past_participle: str,
        *,
        cause: str,
        values: Callable[[RevisionRow], dict[str, Any]] = lambda _: {},
        **options: Any,
    ) -> RevisionRow:
        """Applies a trigger to a revision and retries if the revision changes meanwhile."""
        for _ in range(_MAX_TRIES):
            try:
                new_revision = await self.writer.apply(row.revision, trigger, cause=cause, **options, **values(row))
            except Conflict as e:
                if isinstance(e, InvalidTransition):
                    log.info("%s", e.explain())
                raise Conflict(f"{row.ref} cannot be {past_participle}: {e.message}.", data=e.data) from None
            if new_revision is not None:
                if new_revision is not row.revision:
                    self.loop.restart(new_revision.id)
                return RevisionRow(revision=new_revision, artifact=row.artifact, registry=row.registry)
            row = await self.artifacts.reload(row)
        raise Conflict(f"{row.ref} changes all the time; try again.")


def _check_name(name: str, field: str) -> None:
    with suppress(ValueError):
        UUID(name)
        raise InvalidName(f"The {field} of an artifact is no id.", data={field: "reserved"})
    bad_parts = {"", ".", ".."} & set(name.split("/"))
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable() or "@" in name or name != name.strip() or bad_parts:
        raise InvalidName(
            f"The {field} of an artifact is 1 to {MAX_NAME} characters, without @, without a blank at either end, "
            "and not a path with empty parts or dots.",
            data={field: "malformed"},
        )


class UploadService(msgspec.Struct, frozen=True, kw_only=True):
    """Announces uploads of revisions; clients send the files to the storage proxy."""

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
        _check_name(name, "name")
        _check_name(version, "version")
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
        """Stores the artifact and revision of an upload, and returns the id of the revision."""
        artifact = ScannedArtifact(
            type=kind, name=name, description=description, revisions=[ScannedRevision(version=version)]
        )
        await self.store.record(registry.id, [artifact], at=self.clock.now(), new_id=self.id_generator.uuid)
        return next(
            str(revision.id)
            for row in await self.store.find(name)
            if (row.registry.id, row.artifact.type) == (registry.id, kind)
            for revision in row.revisions
            if revision.version == version
        )
