"""Runs imports and remembers the last ended ones, in memory; their files persist."""

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
from ai.backend.common.wire.artifacts import (
    HubSource,
    ImportKey,
    ImportPhase,
    ImportRequest,
    ImportState,
    Manifest,
    PresignedFile,
    ReservoirSource,
    UploadAnswer,
    UploadRequest,
)
from ai.backend.infra.http.errors import problem
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.object_storage import ObjectStorage
from ai.backend.storage.artifacts.archive import Archive, UrlOf
from ai.backend.storage.artifacts.fetcher import Fetcher
from ai.backend.storage.artifacts.layout import load_manifest, load_plan
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
from ai.backend.storage.artifacts.sources import FileSource, FromHub, FromReservoir
from ai.backend.storage.artifacts.storages import Storages

log = logging.getLogger(__name__)
_KEPT = 1000


@dataclass(slots=True)
class _Job:
    """The task and state of one import."""

    request: ImportRequest
    storage: str
    source: FileSource | None
    phase: ImportPhase = ImportPhase.DOWNLOADING
    current: int = 0
    total: int = 0
    files: int = 0
    manifest: Manifest | None = None
    error: BackendError | None = None
    work: asyncio.Task[None] | None = field(default=None, repr=False)

    def begin(self, phase: ImportPhase, *, current: int, total: int, files: int) -> None:
        self.phase, self.current, self.total, self.files = phase, current, total, files

    def add(self, count: int) -> None:
        self.current += count

    def state(self) -> ImportState:
        return ImportState(
            revision_id=self.request.revision_id,
            attempt=self.request.attempt,
            phase=self.phase,
            current=self.current,
            total=self.total,
            files=self.files,
            storage=self.storage,
            size=self.manifest.size if self.manifest else None,
            digest=self.manifest.digest if self.manifest else None,
            notes=self.manifest.notes if self.manifest else (),
            error=problem(self.error) if self.error else None,
        )


def _done(manifest: Manifest, storage: str) -> ImportState:
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


def _tell(failed: Sequence[BackendError]) -> None:
    """Raises the first of several errors."""
    for error in failed:
        raise error


class Imports:
    """Args: parallel: files of one import that are worked on at once."""

    def __init__(self, storages: Storages, kept: Archive, fetcher: Fetcher, *, limits: Limits, parallel: int) -> None:
        self._storages = storages
        self._kept = kept
        self._fetcher = fetcher
        self._limits = limits
        self._parallel = parallel
        self._jobs: dict[UUID, _Job] = {}
        self._locks: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def _alone(self, revision: UUID) -> AsyncIterator[None]:
        """Holds the lock of a revision, so that nothing else begins or ends work on it."""
        lock = self._locks.setdefault(revision, asyncio.Lock())
        async with lock:
            yield

    async def start(self, request: ImportRequest) -> ImportState:
        """Starts an import, joins it, or returns that it is done.

        Raises:
            StaleAttempt, VolumeNotFound, NotSupported, and what a storage raises.
        """
        revision, stages = request.revision_id, request.stages
        archive = self._storages.of_stage("archive", stages.archive)
        async with self._alone(revision):
            job = self._jobs.get(revision)
            if job is not None and job.request.attempt > request.attempt:
                raise StaleAttempt(data={"attempt": job.request.attempt})
            if job is not None and job.work is not None and job.request.attempt == request.attempt:
                if isinstance(job.source, FromReservoir) and isinstance(request.source, ReservoirSource):
                    job.source.ticket = request.source.ticket
                return job.state()
            await self._end(job)
            download = self._storages.of_stage("download", stages.download)
            verify = self._storages.of_stage("verify", stages.verify or stages.download)
            job = _Job(request, archive.name, self._source(request))
            pipeline = Pipeline(
                request,
                job.source,
                download=download,
                verify=verify,
                archive=archive,
                limits=self._limits,
                parallel=self._parallel,
                progress=job,
            )
            manifest = await load_manifest(archive, revision)
            if manifest is not None and manifest.attempt > request.attempt:
                raise StaleAttempt(data={"attempt": manifest.attempt})
            if manifest is not None and manifest.attempt == request.attempt:
                await pipeline.tidy()
                return _done(manifest, archive.name)
            self._forget_old()
            self._jobs[revision] = job
            job.work = asyncio.create_task(self._run(job, pipeline), name=f"import {revision}")
            return job.state()

    def _source(self, request: ImportRequest) -> FileSource | None:
        if isinstance(request.source, HubSource):
            return FromHub(self._fetcher, request.source)
        if isinstance(request.source, ReservoirSource):
            return FromReservoir(self._fetcher, request.source)
        return None

    async def _run(self, job: _Job, pipeline: Pipeline) -> None:
        revision = job.request.revision_id
        try:
            job.manifest = await pipeline.run()
            job.phase, job.current = ImportPhase.DONE, job.total
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
            job.work = None

    @staticmethod
    async def _end(job: _Job | None) -> None:
        """Stops a job; the fetched files stay."""
        if job is not None and (work := job.work) is not None:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            if not job.phase.has_ended:  # it was cancelled before its first step
                job.phase, job.work = ImportPhase.CANCELLED, None

    def _forget_old(self) -> None:
        ended = [revision for revision, job in self._jobs.items() if job.work is None]
        for revision in ended[:-_KEPT]:
            del self._jobs[revision]

    async def state(self, key: ImportKey) -> ImportState:
        """Returns the state of an import. Raises ArtifactNotFound, or StaleAttempt if there is a newer attempt."""
        job = self._jobs.get(key.revision_id)
        if job is not None and job.request.attempt == key.attempt:
            return job.state()
        found = await self._kept.look(key.revision_id)
        newest = max([m.attempt for _, m in found] + ([job.request.attempt] if job else []), default=-1)
        for storage, manifest in found:
            if manifest.attempt == key.attempt:
                return _done(manifest, storage.name)
        if newest > key.attempt:
            raise StaleAttempt(data={"attempt": newest})
        raise ArtifactNotFound("No such import is known here: ask for it again.")

    async def cancel(self, key: ImportKey) -> None:
        """End an import and throw away what it has fetched. One that has ended, or is not known, is right as well.

        Raises:
            StaleAttempt: a newer one is under way.
        """
        async with self._alone(key.revision_id):
            job = self._jobs.get(key.revision_id)
            if job is not None and job.request.attempt > key.attempt:
                raise StaleAttempt(data={"attempt": job.request.attempt})
            await self._end(job)
            _tell(await self._wipe(key.revision_id, [name for name in AREAS if name != "artifacts"]))

    async def delete(self, revision: UUID) -> None:
        """Ends all work on a revision and removes its files from every storage."""
        async with self._alone(revision):
            await self._end(self._jobs.pop(revision, None))
            await self._kept.forget(revision)
            failed = await self._everywhere(lambda storage: storage.delete([manifest_key(revision)]))
            crash_point("artifact.deleting")  # from here on there is no such revision
            _tell(failed + await self._wipe(revision, AREAS))

    async def _wipe(self, revision: UUID, areas: Sequence[str]) -> list[BackendError]:
        async def wipe(storage: ObjectStorage) -> None:
            for name in areas:
                await storage.delete_prefix(area(name, revision))

        return await self._everywhere(wipe)

    async def _everywhere(self, work: Callable[[ObjectStorage], Awaitable[None]]) -> list[BackendError]:
        """On all storages; what failed on some of them."""
        failed = []
        for storage in self._storages:
            try:
                await work(storage)
            except BackendError as e:
                failed.append(e)
        return failed

    # What users upload

    async def take(self, request: UploadRequest, url_of: UrlOf) -> UploadAnswer:
        """Returns URLs to put the files of a revision.

        Raises:
            ArtifactRejected, StaleAttempt, VolumeNotFound, InvalidInput.
        """
        revision = request.revision_id
        storage = self._storages.of_stage("download", request.stages.download)
        files = tuple(PlannedFile(path=f.path, size=f.size, sha256=f.sha256) for f in request.files)
        files = check_files(files, self._limits)
        digest = f"upload-{request.attempt}"
        plan = Plan(attempt=request.attempt, digest=digest, origin="upload", files=files)
        async with self._alone(revision):
            job = self._jobs.get(revision)
            old = await load_plan(storage, revision)
            newest = max([p.attempt for p in (old, job and job.request) if p], default=-1)
            if newest > request.attempt:
                raise StaleAttempt(data={"attempt": newest})
            if old != plan:
                await self._end(job)
                for name in ("pulling", "incoming"):
                    await storage.delete_prefix(area(name, revision))
                await storage.put(plan_key(revision), msgspec.json.encode(plan))
        incoming = files_of("incoming", revision)
        urls = [
            PresignedFile(path=file.path, url=await url_of(storage, incoming + file.path, request.expires_s, file.size))
            for file in files
        ]
        return UploadAnswer(files=tuple(urls))

    async def stop(self) -> None:
        """Stops all imports; managers request them again."""
        await asyncio.gather(*(self._end(job) for job in list(self._jobs.values())))
