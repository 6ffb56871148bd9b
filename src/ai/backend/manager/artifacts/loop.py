"""Imports revisions of artifacts, and removes the files of cancelled and deleted revisions.

Level-triggered: a round reads every revision in progress, asks the storage proxy for its state, and stores it. The
proxy joins running imports and resumes interrupted ones, so a killed manager or proxy delays an import only until the
next round.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from functools import partial
from typing import Any

from ai.backend.common.artifacts import RegistryType, RevisionStatus
from ai.backend.common.errors import (
    ArtifactIncomplete,
    ArtifactNotFound,
    BackendError,
    InternalError,
    RegistryRefused,
    Unavailable,
    from_wire,
)
from ai.backend.common.ids import RevisionId
from ai.backend.common.structs import replace
from ai.backend.common.wire.artifacts import ImportPhase, ImportState
from ai.backend.core.lifecycle.artifact import RevisionState, RevisionTrigger, step
from ai.backend.core.lifecycle.transition import TransitionHistories
from ai.backend.infra.clock import Clock
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.infra.retry import Backoff
from ai.backend.manager.artifacts.gateway import ArtifactGateway, Reservoirs
from ai.backend.manager.artifacts.model import ArtifactSettings, ImportProgress, Revision, RevisionRow
from ai.backend.manager.artifacts.registries import RegistryService
from ai.backend.manager.artifacts.store import ArtifactStore
from ai.backend.plugin.crash_points import crash_point


class RevisionWriter:
    """Applies triggers to revisions, and stores the new status if the revision did not change meanwhile."""

    def __init__(self, store: ArtifactStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._histories = TransitionHistories()

    async def apply(
        self,
        loaded_revision: Revision,
        trigger: RevisionTrigger,
        *,
        cause: str = "artifact loop",
        info: str | None = None,
        unless_mounted: bool = False,
        **values: Any,
    ) -> Revision | None:
        """Applies a trigger to a revision, stores the new status, and returns the new revision.

        Returns ``loaded_revision`` itself if nothing changes, or None if it is outdated and must be loaded again.

        Raises:
            InvalidTransition: the status does not admit the trigger; the message is half a sentence.
            Conflict: ``unless_mounted`` and a session mounts it; the message is half a sentence.
        """
        old_state, subject = (
            RevisionState(loaded_revision.status, loaded_revision.residue),
            f"revision {loaded_revision.id}",
        )
        new_state, transition_path, _ = step(
            old_state,
            trigger,
            subject=subject,
            stimulus_id=cause,
            recent_transitions=self._histories.of(loaded_revision.id),
        )
        if not transition_path:
            return loaded_revision
        new_revision = await self._store.move(
            loaded_revision,
            at=self._clock.now(),
            unless_mounted=unless_mounted,
            status=new_state.status,
            residue=new_state.residue,
            status_info=info,
            **values,
        )
        if new_revision is not None:
            self._histories.extend(loaded_revision.id, transition_path)
        crash_point(f"after-artifact-{trigger.value}")
        return new_revision

    async def update(self, loaded_revision: Revision, **values: Any) -> Revision | None:
        """Stores values of a revision other than the status, and returns the new revision.

        Returns None if ``loaded_revision`` is outdated and must be loaded again.
        """
        return await self._store.move(loaded_revision, at=self._clock.now(), **values)


log = logging.getLogger(__name__)

_FIRST_POLL_S, _LAST_POLL_S = 0.05, 2.0
_MAX_FAILURES = 3
_RETRY_NOTE = " (It is tried again.)"


def problem_of(state: ImportState) -> BackendError:
    """Converts the error in the state of a failed import to an exception."""
    error_document = state.error or {}
    code = str(error_document.get("type", "")).rpartition("/")[2]
    message = str(error_document.get("detail") or error_document.get("title") or f"the import is {state.phase.value}")
    data = error_document.get("data")
    return from_wire(code or InternalError.code, message, data if isinstance(data, dict) else None)


class ArtifactLoop(PeriodicLoop):
    """Imports or cleans up revisions, with one task for each revision."""

    period_s = 5.0

    def __init__(
        self,
        *,
        store: ArtifactStore,
        writer: RevisionWriter,
        gateway: ArtifactGateway,
        reservoirs: Reservoirs,
        registries: RegistryService,
        settings: ArtifactSettings,
        clock: Clock,
    ) -> None:
        super().__init__()
        self._store, self._writer, self._clock = store, writer, clock
        self._gateway, self._reservoirs, self._registries = gateway, reservoirs, registries
        self._give_up = timedelta(hours=settings.give_up_hours)
        self._slots = asyncio.Semaphore(settings.parallel)
        self._drivers: dict[RevisionId, asyncio.Task[None]] = {}
        self._progress: dict[RevisionId, tuple[int, ImportProgress]] = {}
        self._delegated: set[tuple[RevisionId, int]] = set()
        self._failures: dict[tuple[RevisionId, int], int] = {}

    def progress(self, revision: Revision) -> ImportProgress | None:
        """Returns the progress of the import with this attempt, or None if the import does not run here."""
        attempt, progress = self._progress.get(revision.id, (-1, None))
        return progress if attempt == revision.attempt else None

    def restart(self, revision_id: RevisionId) -> None:
        """Restarts the task of a revision after a request has changed the revision."""
        driving_task = self._drivers.get(revision_id)
        if driving_task is not None:
            driving_task.cancel()
        self.wake()

    async def stop(self) -> None:
        """Cancels running imports and removals; the next process resumes them."""
        driving_tasks = list(self._drivers.values())
        for driving_task in driving_tasks:
            driving_task.cancel()
        await asyncio.gather(*driving_tasks, return_exceptions=True)

    async def once(self) -> None:
        rows = await self._store.revisions_in_progress()
        self._forget_inactive({row.revision.id for row in rows})
        for row in rows:
            revision_id = row.revision.id
            if revision_id not in self._drivers:
                self._drivers[revision_id] = asyncio.create_task(self._run_steps(row), name=f"artifact {revision_id}")
                self._drivers[revision_id].add_done_callback(partial(self._on_done, revision_id))

    def _on_done(self, revision_id: RevisionId, driving_task: asyncio.Task[None]) -> None:
        del self._drivers[revision_id]
        if driving_task.cancelled():
            self.wake()  # restarted: read the revision again

    def _forget_inactive(self, active_ids: set[RevisionId]) -> None:
        self._progress = {
            revision_id: progress for revision_id, progress in self._progress.items() if revision_id in active_ids
        }
        self._delegated = {attempt_key for attempt_key in self._delegated if attempt_key[0] in active_ids}
        self._failures = {
            attempt_key: count for attempt_key, count in self._failures.items() if attempt_key[0] in active_ids
        }

    async def _run_steps(self, row: RevisionRow) -> None:
        """Executes the steps of one revision as far as possible, and reads its row before each step."""
        try:
            while rows := await self._store.revisions([row.revision.id]):
                [row] = rows
                if not await self._advance(row):
                    return
        except BackendError as error:
            await self._handle_failure(row, error)
        except Exception:  # the next round starts from the stored row
            log.exception("the revision %s of an artifact stays %s for now", row.ref, row.revision.status)

    async def _advance(self, row: RevisionRow) -> bool:
        """Executes the next step of a revision, and returns True if another step follows."""
        revision = row.revision
        if revision.residue:
            await self._gateway.remove(row)
            crash_point("after-artifact-remove")
            return await self._writer.update(revision, residue=False, stages=None) is not None
        if revision.status not in (RevisionStatus.PULLING, RevisionStatus.PULLED):
            return False
        if revision.stages is None:
            stages = await self._registries.stages(row.registry)  # the import waited for the removal of an older one
            return await self._writer.update(revision, stages=stages) is not None
        async with self._slots:
            rows = await self._store.revisions([revision.id])  # it may have waited for long
            if rows and rows[0].revision == revision:
                await self._import(row)
        return False

    async def _import(self, row: RevisionRow) -> None:
        state = await self._begin_import(row)
        backoff = Backoff(_FIRST_POLL_S, _LAST_POLL_S, factor=1.5)
        while state is not None:
            updated_row = await self._store_progress(row, state)
            if updated_row is None:
                return
            row = updated_row
            await backoff.wait()
            state = await self._gateway.import_state(row) or await self._begin_import(row)

    async def _begin_import(self, row: RevisionRow) -> ImportState | None:
        """Starts the import of a revision, or joins the running import, and returns the state of the import.

        Returns None while another installation still imports the revision.
        """
        ticket = None
        if row.registry.type is RegistryType.RESERVOIR:
            if not await self._is_available(row):
                return None
            ticket = await self._reservoirs.ticket(row)
        state = await self._gateway.begin_import(row, ticket=ticket)
        crash_point("after-artifact-begin")
        return state

    async def _is_available(self, row: RevisionRow) -> bool:
        """Returns True if another installation has the files of a revision. If the import is delegated, the other
        installation is made to import them. Raises ArtifactNotFound: it does not have them and may not or cannot import
        them.
        """
        remote_revision = await self._reservoirs.revision(row)
        if remote_revision.status is RevisionStatus.AVAILABLE:
            return True
        attempt = row.revision.id, row.revision.attempt
        if remote_revision.status is RevisionStatus.SCANNED:
            if not row.revision.delegated:
                raise ArtifactNotFound(
                    f"{row.registry.name} has not imported {row.ref} itself; import it with delegation."
                )
            if attempt in self._delegated:
                raise ArtifactNotFound(
                    f"{row.registry.name} could not import {row.ref}:"
                    f" {remote_revision.status_info or 'no reason given'}"
                )
            await self._reservoirs.delegate_import(row)
        self._delegated.add(attempt)
        await self._update(row, status_info=f"waiting for {row.registry.name} to import it")
        return False

    async def _store_progress(self, row: RevisionRow, state: ImportState) -> RevisionRow | None:
        """Stores the progress of an import, and returns None when the import has ended. Raises BackendError: the import
        failed.
        """
        phase, revision = state.phase, row.revision
        progress = ImportProgress(phase=phase.value, current=state.current, total=state.total)
        self._progress[revision.id] = revision.attempt, progress
        if phase is ImportPhase.FAILED:
            raise problem_of(state)
        if phase is ImportPhase.CANCELLED:
            raise Unavailable("The storage proxy has stopped the import.")  # it is shutting down
        new_revision: Revision | None = revision
        if phase is not ImportPhase.DOWNLOADING:
            new_revision = await self._writer.apply(revision, RevisionTrigger.DOWNLOADED)
        if phase is ImportPhase.DONE and new_revision is not None:
            stages = new_revision.stages
            if stages is not None and state.storage:
                stages = replace(stages, archive=state.storage)
            await self._writer.apply(
                new_revision,
                RevisionTrigger.ARCHIVED,
                info=" ".join(state.notes) or None,
                size=state.size if state.size is not None else new_revision.size,
                stages=stages,
                file_count=state.files,
                imported_digest=state.digest,
            )
            return None
        if new_revision is None:
            return None
        return RevisionRow(revision=new_revision, artifact=row.artifact, registry=row.registry)

    async def _update(self, row: RevisionRow, **values: Any) -> Revision | None:
        if all(getattr(row.revision, name) == value for name, value in values.items()):
            return row.revision
        return await self._writer.update(row.revision, **values)

    async def _handle_failure(self, row: RevisionRow, error: BackendError) -> None:
        """Schedules another try, or fails the import with the reason; removals are tried for ever."""
        for current_row in await self._store.revisions([row.revision.id]):
            revision, status_text = current_row.revision, error.message + _RETRY_NOTE
            if revision.status_info != status_text:
                log.warning("the revision %s of an artifact is still %s: %s", row.ref, revision.status, error)
            if revision.status is RevisionStatus.SCANNED or revision.attempt != row.revision.attempt:
                continue  # keep the reason of the failed import
            if self._is_transient(current_row, error):
                await self._update(current_row, status_info=status_text)
            else:
                await self._writer.apply(revision, RevisionTrigger.FAILED, info=error.message)
                self.wake()

    def _is_transient(self, row: RevisionRow, error: BackendError) -> bool:
        attempt_key = row.revision.id, row.revision.attempt
        self._failures[attempt_key] = self._failures.get(attempt_key, 0) + 1
        if isinstance(error, Unavailable | ArtifactIncomplete):
            began_at = row.revision.began_at or row.revision.status_changed
            return self._clock.now() - began_at < self._give_up
        is_ticket_refusal = isinstance(error, RegistryRefused) and row.registry.type is RegistryType.RESERVOIR
        return (error.retryable or is_ticket_refusal) and self._failures[attempt_key] < _MAX_FAILURES
