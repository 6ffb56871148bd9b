"""Begins, cancels and cleans up imports; the loop executes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ai.backend.common.artifacts import RegistryType
from ai.backend.common.errors import Conflict, InvalidInput
from ai.backend.core.lifecycle.artifact import RevisionTrigger
from ai.backend.core.lifecycle.transition import InvalidTransition
from ai.backend.infra.clock import Clock
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.artifacts.loop import ArtifactLoop
from ai.backend.manager.artifacts.model import ImportProgress, Revision, RevisionRow
from ai.backend.manager.artifacts.registries import RegistryService
from ai.backend.manager.artifacts.service import ArtifactService
from ai.backend.manager.artifacts.store import ArtifactStore
from ai.backend.manager.artifacts.writer import RevisionWriter

log = logging.getLogger(__name__)
_TRIES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportService:
    """Manages imports. ``refs`` are as for :meth:`ArtifactService.revision`; all are resolved before one is changed."""

    store: ArtifactStore
    artifacts: ArtifactService
    registries: RegistryService
    writer: RevisionWriter
    loop: ArtifactLoop
    clock: Clock

    def progress(self, revision: Revision) -> ImportProgress | None:
        """Returns the progress of an import, or None if none is known."""
        return self.loop.progress(revision)

    async def begin(self, caller: Caller, refs: Sequence[str], *, delegate: bool = False) -> list[RevisionRow]:
        """Begins to import revisions; ignores those that are being imported or are available. ``delegate``: the other
        installation imports missing revisions first (spec 03-17, "Delegate Import")."""
        require(caller, Operation.CHANGE_ARTIFACTS)
        rows = await self._resolve(caller, refs)
        stages = {}
        for row in rows:
            if delegate and row.registry.type is not RegistryType.RESERVOIR:
                raise InvalidInput(
                    f"Only another installation can import for us, and {row.ref} comes from {row.registry.name!r}.",
                    data={"delegate": "no reservoir"},
                )
            if row.registry.id not in stages:
                stages[row.registry.id] = await self.registries.stages(row.registry)

        def values(row: RevisionRow) -> dict[str, Any]:
            # The residue lies in the old stages; the loop sets new ones after it is removed.
            new_stages = row.revision.stages if row.revision.residue else stages[row.registry.id]
            attempt = row.revision.attempt + 1
            return {"stages": new_stages, "delegated": delegate, "began_at": self.clock.now(), "attempt": attempt}

        cause = caller.stimulus_id
        return [
            await self._apply(row, RevisionTrigger.IMPORT_REQUESTED, "imported", values=values, cause=cause)
            for row in rows
        ]

    async def cancel(self, caller: Caller, refs: Sequence[str]) -> list[RevisionRow]:
        """Cancels imports. Raises Conflict where none is running."""
        require(caller, Operation.CHANGE_ARTIFACTS)
        rows = await self._resolve(caller, refs)
        trigger, cause = RevisionTrigger.CANCEL_REQUESTED, caller.stimulus_id
        return [await self._apply(row, trigger, "cancelled", info="cancelled", cause=cause) for row in rows]

    async def clean_up(self, caller: Caller, refs: Sequence[str]) -> list[RevisionRow]:
        """Removes the files of revisions but keeps their rows. Raises Conflict while a session mounts them."""
        require(caller, Operation.CHANGE_ARTIFACTS)
        rows = await self._resolve(caller, refs)
        trigger, cause = RevisionTrigger.CLEANUP_REQUESTED, caller.stimulus_id
        return [await self._apply(row, trigger, "cleaned up", unless_mounted=True, cause=cause) for row in rows]

    async def delete(self, caller: Caller, ref: str) -> None:
        """Removes an artifact until the next scan. Raises Conflict while files of it are stored."""
        require(caller, Operation.CHANGE_ARTIFACTS)
        await self.store.remove_artifact((await self.artifacts.artifact(caller, ref)).artifact.id)

    async def _resolve(self, caller: Caller, refs: Sequence[str]) -> list[RevisionRow]:
        rows = [await self.artifacts.revision(caller, ref) for ref in refs]
        return list({row.revision.id: row for row in rows}.values())

    async def _apply(
        self,
        row: RevisionRow,
        trigger: RevisionTrigger,
        done: str,
        *,
        cause: str,
        values: Callable[[RevisionRow], dict[str, Any]] = lambda _: {},
        **options: Any,
    ) -> RevisionRow:
        """Applies a trigger to a revision and retries if the revision changes meanwhile."""
        for _ in range(_TRIES):
            try:
                moved = await self.writer.apply(row.revision, trigger, cause=cause, **options, **values(row))
            except Conflict as e:
                if isinstance(e, InvalidTransition):
                    log.info("%s", e.explain())
                raise Conflict(f"{row.ref} cannot be {done}: {e.message}.", data=e.data) from None
            if moved is not None:
                if moved is not row.revision:
                    self.loop.restart(moved.id)
                return RevisionRow(revision=moved, artifact=row.artifact, registry=row.registry)
            row = await self.artifacts.reload(row)
        raise Conflict(f"{row.ref} changes all the time; try again.")
