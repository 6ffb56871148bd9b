"""Runs the imports of artifacts, and remembers in memory the last ones that have ended.

The files of imports persist.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from ai.backend.common.errors import ArtifactNotFound, BackendError, InternalError, StaleAttempt
from ai.backend.common.wire import artifacts as wire
from ai.backend.common.wire.artifacts import ImportPhase, ImportState
from ai.backend.infra.http.errors import problem
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.object_storage import ObjectStorage
from ai.backend.storage.artifacts.archive import Archive, Storages, UrlOf, load_manifest, load_record
from ai.backend.storage.artifacts.fetcher import Fetcher
from ai.backend.storage.artifacts.hub import FileSource, FromHub, FromReservoir
from ai.backend.storage.artifacts.model import (
    AREAS,
    Limits,
    Plan,
    PlannedFile,
    area,
    check_files,
    files_of,
    manifest_key,
    plan_key,
)
from ai.backend.storage.artifacts.pipeline import Pipeline

log = logging.getLogger(__name__)
_MAX_ENDED_JOBS = 1000


@dataclass(slots=True)
class _ImportJob:
    request: wire.ImportRequest
    storage: str
    source: FileSource | None
    phase: ImportPhase = ImportPhase.DOWNLOADING
    done_bytes: int = 0
    total_bytes: int = 0
    file_count: int = 0
    manifest: wire.Manifest | None = None
    error: BackendError | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def begin(self, phase: ImportPhase, *, done_bytes: int, total_bytes: int, file_count: int) -> None:
        self.phase, self.done_bytes, self.total_bytes, self.file_count = phase, done_bytes, total_bytes, file_count

    def add(self, byte_count: int) -> None:
        self.done_bytes += byte_count

    def state(self) -> ImportState:
        if self.manifest is not None:
            return _done_state(self.manifest, self.storage)
        return ImportState(
            revision_id=self.request.revision_id,
            attempt=self.request.attempt,
            phase=self.phase,
            current=self.done_bytes,
            total=self.total_bytes,
            files=self.file_count,
            storage=self.storage,
            error=problem(self.error) if self.error else None,
        )


def _done_state(manifest: wire.Manifest, storage: str) -> ImportState:
    return ImportState(
        revision_id=manifest.revision_id,
        attempt=manifest.attempt,
        phase=ImportPhase.DONE,
        current=manifest.size,
        total=manifest.size,
        files=len(manifest.files),
        storage=storage,
        size=manifest.size,
        digest=manifest.digest,
        notes=manifest.notes,
    )


@dataclass(slots=True, kw_only=True)
class Imports:
    """Runs the imports of this proxy; ``parallel`` is the number of files of one import that are handled at once."""

    storages: Storages
    archive: Archive
    fetcher: Fetcher
    limits: Limits
    parallel: int
    _jobs: dict[UUID, _ImportJob] = field(default_factory=dict, init=False)
    _locks: WeakValueDictionary[UUID, asyncio.Lock] = field(default_factory=WeakValueDictionary, init=False)

    @asynccontextmanager
    async def _revision_lock(self, revision: UUID) -> AsyncIterator[None]:
        lock = self._locks.setdefault(revision, asyncio.Lock())
        async with lock:
            yield

    async def start(self, request: wire.ImportRequest) -> ImportState:
        """Starts the import of a revision, or joins the same import under way; returns the import's state.

        Starts nothing if the import is done. Raises StaleAttempt, VolumeNotFound, NotSupported, and the errors of a
        storage.
        """
        revision, stages = request.revision_id, request.stages
        archive = self.storages.of_stage("archive", stages.archive)
        async with self._revision_lock(revision):
            job = self._jobs.get(revision)
            _check_attempt(request, job)
            if job is not None and job.task is not None and job.request.attempt == request.attempt:
                if isinstance(job.source, FromReservoir) and isinstance(request.source, wire.ReservoirSource):
                    job.source.ticket = request.source.ticket
                return job.state()
            await self._stop_job(job)
            job = _ImportJob(request, archive.name, self._make_source(request))
            pipeline = Pipeline(
                request,
                job.source,
                download=self.storages.of_stage("download", stages.download),
                verify=self.storages.of_stage("verify", stages.verify or stages.download),
                archive=archive,
                limits=self.limits,
                parallel=self.parallel,
                progress=job,
            )
            manifest = await load_manifest(archive, revision)
            _check_attempt(request, None, manifest)
            if manifest is not None and manifest.attempt == request.attempt:
                await pipeline.clean_up()
                return _done_state(manifest, archive.name)
            ended_revisions = [old_revision for old_revision, job in self._jobs.items() if job.task is None]
            for old_revision in ended_revisions[:-_MAX_ENDED_JOBS]:
                del self._jobs[old_revision]
            self._jobs[revision] = job
            job.task = asyncio.create_task(self._run(job, pipeline), name=f"import {revision}")
            return job.state()

    def _make_source(self, request: wire.ImportRequest) -> FileSource | None:
        if isinstance(request.source, wire.HubSource):
            return FromHub(self.fetcher, request.source)
        if isinstance(request.source, wire.ReservoirSource):
            return FromReservoir(self.fetcher, request.source)
        return None

    async def _run(self, job: _ImportJob, pipeline: Pipeline) -> None:
        revision = job.request.revision_id
        try:
            job.manifest = await pipeline.run()
            job.phase = ImportPhase.DONE
            log.info("the revision %s is archived on %s", revision, job.storage)
        except BackendError as e:
            job.phase, job.error = ImportPhase.FAILED, e
            log.warning("the import of %s failed: %s", revision, e.message)
        except asyncio.CancelledError:
            job.phase = ImportPhase.CANCELLED
            raise
        except Exception:
            job.phase, job.error = ImportPhase.FAILED, InternalError()
            log.exception("the import of %s failed", revision)
        finally:
            job.task = None

    @staticmethod
    async def _stop_job(job: _ImportJob | None) -> None:
        """Stops a job; the fetched files stay."""
        if job is not None and (task := job.task) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if not job.phase.has_ended:  # it was cancelled before its first step
                job.phase, job.task = ImportPhase.CANCELLED, None

    async def state(self, key: wire.ImportKey) -> ImportState:
        """Returns the state of an import. Raises ArtifactNotFound, or StaleAttempt if there is a newer attempt."""
        job = self._jobs.get(key.revision_id)
        if job is not None and job.request.attempt == key.attempt:
            return job.state()
        archived_copies = await self.archive.find_all(key.revision_id)
        for storage, manifest in archived_copies:
            if manifest.attempt == key.attempt:
                return _done_state(manifest, storage.name)
        _check_attempt(key, job, *(manifest for _, manifest in archived_copies))
        raise ArtifactNotFound("No such import is known here: ask for it again.")

    async def cancel(self, key: wire.ImportKey) -> None:
        """Ends an import and removes the fetched files; does nothing if the import has ended or is unknown.

        Raises StaleAttempt: a newer one is under way.
        """
        async with self._revision_lock(key.revision_id):
            job = self._jobs.get(key.revision_id)
            _check_attempt(key, job)
            await self._stop_job(job)
            _raise_first(
                await self._delete_areas(
                    key.revision_id, [area_name for area_name in AREAS if area_name != "artifacts"]
                )
            )

    async def delete(self, revision: UUID) -> None:
        """Ends all work on a revision and removes its files from every storage."""
        async with self._revision_lock(revision):
            await self._stop_job(self._jobs.pop(revision, None))
            await self.archive.cancel_copy(revision)
            failures = await self._on_all_storages(lambda storage: storage.delete([manifest_key(revision)]))
            crash_point("artifact.deleting")  # from here on there is no such revision
            _raise_first(failures + await self._delete_areas(revision, AREAS))

    async def _delete_areas(self, revision: UUID, area_names: Sequence[str]) -> list[BackendError]:
        async def delete_areas(storage: ObjectStorage) -> None:
            for name in area_names:
                await storage.delete_prefix(area(name, revision))

        return await self._on_all_storages(delete_areas)

    async def _on_all_storages(self, storage_action: Callable[[ObjectStorage], Awaitable[None]]) -> list[BackendError]:
        failures = []
        for storage in self.storages:
            try:
                await storage_action(storage)
            except BackendError as e:
                failures.append(e)
        return failures

    async def begin_upload(self, request: wire.UploadRequest, url_of: UrlOf) -> wire.UploadAnswer:
        """Returns URLs to put the files of a revision that users upload.

        Raises ArtifactRejected, StaleAttempt, VolumeNotFound, InvalidInput.
        """
        revision = request.revision_id
        storage = self.storages.of_stage("download", request.stages.download)
        files = tuple(
            PlannedFile(path=requested_file.path, size=requested_file.size, sha256=requested_file.sha256)
            for requested_file in request.files
        )
        files = check_files(files, self.limits)
        plan = Plan(attempt=request.attempt, digest=f"upload-{request.attempt}", origin="upload", files=files)
        async with self._revision_lock(revision):
            job = self._jobs.get(revision)
            stored_plan = await load_record(storage, plan_key(revision), Plan)
            _check_attempt(request, job, stored_plan)
            if stored_plan != plan:
                await self._stop_job(job)
                for area_name in ("pulling", "incoming"):
                    await storage.delete_prefix(area(area_name, revision))
                await storage.put(plan_key(revision), msgspec.json.encode(plan))
        incoming_prefix = files_of("incoming", revision)
        upload_urls = [
            await url_of(storage, incoming_prefix + file.path, request.expires_s, file.size) for file in files
        ]
        files_with_urls = zip(files, upload_urls, strict=True)
        return wire.UploadAnswer(
            files=tuple(wire.PresignedFile(path=file.path, url=url) for file, url in files_with_urls)
        )

    async def stop(self) -> None:
        """Stops all imports; managers request the imports again."""
        await asyncio.gather(*(self._stop_job(job) for job in list(self._jobs.values())))


def _check_attempt(
    key: wire.ImportKey | wire.UploadRequest, job: _ImportJob | None, *records: wire.Manifest | Plan | None
) -> None:
    newest_attempt = max(
        (record.attempt for record in (job.request if job else None, *records) if record is not None), default=-1
    )
    if newest_attempt > key.attempt:
        raise StaleAttempt(data={"attempt": newest_attempt})


def _raise_first(errors: Sequence[BackendError]) -> None:
    if errors:
        raise errors[0]
