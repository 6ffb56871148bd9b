"""Runs one import of a revision, from its source to the archive, in the stages download, verify and archive.

The files themselves are the state: a file of the planned size in the place of a stage has passed that stage. So a run
that was killed at any point is resumed by running it again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import NamedTuple, Protocol

import msgspec

from ai.backend.common.errors import ArtifactDamaged, ArtifactIncomplete, NoSuchFile, RegistryUnavailable, StaleAttempt
from ai.backend.common.structs import replace
from ai.backend.common.wire.artifacts import ArtifactFile, ImportPhase, ImportRequest, Manifest
from ai.backend.infra.bounded import bounded
from ai.backend.infra.retry import Backoff
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.object_storage import ObjectStorage
from ai.backend.storage.artifacts.archive import drop_other_attempts, load_record, sizes_below, transfer, upload_of
from ai.backend.storage.artifacts.fetcher import RangeIgnored
from ai.backend.storage.artifacts.hub import FileSource
from ai.backend.storage.artifacts.model import (
    Limits,
    Plan,
    PlannedFile,
    Verified,
    area,
    check_files,
    files_of,
    manifest_key,
    plan_key,
    verified_key,
)

log = logging.getLogger(__name__)
_MAX_FETCH_TRIES = 4
_FIRST_RETRY_PAUSE_S, _MAX_RETRY_PAUSE_S = 0.5, 10.0
_MAX_NAMED_FILES = 10
_HASH_CHUNK_BYTES = 1 << 20
_PICKLE_SUFFIXES = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth", ".joblib")


class Progress(Protocol):
    """Receives the progress of an import, in bytes."""

    def begin(self, phase: ImportPhase, *, done_bytes: int, total_bytes: int, file_count: int) -> None: ...
    def add(self, byte_count: int) -> None: ...


class _Stage(NamedTuple):
    storage: ObjectStorage
    prefix: str

    async def sizes(self) -> dict[str, int]:
        return await sizes_below(self.storage, self.prefix)


class Pipeline:
    """Runs the import of one revision through its stages.

    ``source``: None for uploaded files. ``download``, ``verify``, ``archive``: the storage of each stage. ``parallel``:
    the number of files that are handled at once.
    """

    def __init__(
        self,
        request: ImportRequest,
        source: FileSource | None,
        *,
        download: ObjectStorage,
        verify: ObjectStorage,
        archive: ObjectStorage,
        limits: Limits,
        parallel: int,
        progress: Progress,
    ) -> None:
        self._request, self._source, self._limits = request, source, limits
        self._parallel, self._progress = parallel, progress
        self._revision = revision = request.revision_id
        self._download = _Stage(download, files_of("pulling", revision))
        self._has_verify = verify is not download
        self._verify = _Stage(verify, files_of("verifying", revision)) if self._has_verify else self._download
        self._archive = _Stage(archive, files_of("artifacts", revision, request.attempt))

    async def run(self) -> Manifest:
        """Downloads, verifies and archives the files of the revision, and returns the manifest.

        Correct files stay for the next try.

        Raises ArtifactChanged, ArtifactRejected, ArtifactIncomplete, ArtifactDamaged, ArtifactNotFound, StaleAttempt;
        BackendError: a registry or a storage fails.
        """
        plan = await self._load_plan()
        verified = await self._load_verified(plan)
        if verified is None:
            await self._fetch(plan)
            verified = await self._check_contents(plan)
        return await self._publish(plan, verified)

    async def _load_plan(self) -> Plan:
        storage, key = self._download.storage, plan_key(self._revision)
        stored_plan = await load_record(storage, key, Plan)
        if stored_plan is not None and stored_plan.attempt > self._request.attempt:
            raise StaleAttempt(data={"attempt": stored_plan.attempt})
        if self._source is None:
            if stored_plan is None or stored_plan.attempt != self._request.attempt:
                raise ArtifactIncomplete("Nothing was uploaded for this attempt.")
            return stored_plan
        if (
            stored_plan is not None
            and stored_plan.attempt == self._request.attempt
            and await self._load_verified(stored_plan) is not None
        ):
            return stored_plan  # all files are there: the source need not even answer
        announced_plan = await self._source.plan(self._request.attempt, stored_plan.digest if stored_plan else None)
        announced_plan = replace(announced_plan, files=check_files(announced_plan.files, self._limits))
        if stored_plan is None or stored_plan.fingerprint != announced_plan.fingerprint:
            await storage.delete_prefix(area("pulling", self._revision))
            await self._verify.storage.delete_prefix(area("verifying", self._revision))
        if stored_plan != announced_plan:
            await storage.put(key, msgspec.json.encode(announced_plan))
        crash_point("artifact.planned")
        return announced_plan

    async def _fetch(self, plan: Plan) -> None:
        size_by_path = await self._download.sizes()
        if self._has_verify:
            size_by_path |= await self._verify.sizes()
        missing_files = [file for file in plan.files if size_by_path.get(file.path) != file.size]
        present_bytes = plan.size - sum(file.size for file in missing_files)
        self._progress.begin(
            ImportPhase.DOWNLOADING, done_bytes=present_bytes, total_bytes=plan.size, file_count=len(plan.files)
        )
        if self._source is None:
            await self._accept_uploads(missing_files)
        else:
            source = self._source
            async for _ in bounded(missing_files, lambda file: self._fetch_file(source, plan, file), self._parallel):
                pass
        crash_point("artifact.downloaded")

    async def _accept_uploads(self, missing_files: Sequence[PlannedFile]) -> None:
        """Moves uploaded files to the place of downloaded ones, where the upload's URLs cannot change them any more.

        Raises ArtifactIncomplete for files that are missing or have another size.
        """
        incoming_stage = _Stage(self._download.storage, files_of("incoming", self._revision))
        size_by_path = await incoming_stage.sizes()
        lacking_paths = [file.path for file in missing_files if size_by_path.get(file.path) != file.size]
        if lacking_paths:
            raise ArtifactIncomplete(
                f"{len(lacking_paths)} files were not uploaded, or with another size.",
                data={"missing": lacking_paths[:_MAX_NAMED_FILES], "count": len(lacking_paths)},
            )
        for file in missing_files:
            await incoming_stage.storage.move(incoming_stage.prefix + file.path, self._download.prefix + file.path)
            self._progress.add(file.size)
            crash_point("artifact.file")

    async def _fetch_file(self, source: FileSource, plan: Plan, file: PlannedFile) -> None:
        """Fetches a file in some tries, each from the byte where the previous one ended."""
        key = self._download.prefix + file.path
        upload = await upload_of(self._download.storage, key, file.size)
        reported_bytes = 0
        retry_pauses = Backoff(_FIRST_RETRY_PAUSE_S, _MAX_RETRY_PAUSE_S)
        try:
            while True:
                self._progress.add(upload.offset - reported_bytes)
                reported_bytes = first_offset = upload.offset
                try:
                    if upload.offset < file.size or not file.size:
                        async with aclosing(source.fetch(plan, file, upload.offset)) as received_parts:
                            async for received_part in received_parts:
                                await upload.write(received_part)
                                self._progress.add(len(received_part))
                                reported_bytes += len(received_part)
                                crash_point("artifact.part")
                    break
                except RangeIgnored:
                    await upload.abort()
                    upload = await upload_of(self._download.storage, key, file.size)
                except RegistryUnavailable:
                    if upload.offset > first_offset:
                        retry_pauses.reset()
                    if retry_pauses.failures + 1 == _MAX_FETCH_TRIES:
                        raise
                    await retry_pauses.wait()
            await upload.publish()
            crash_point("artifact.file")
        finally:
            await upload.close()

    async def _load_verified(self, plan: Plan) -> Verified | None:
        verified = await load_record(self._download.storage, verified_key(self._revision), Verified)
        if verified is None or (verified.attempt, verified.fingerprint) != (plan.attempt, plan.fingerprint):
            return None
        return verified

    async def _check_contents(self, plan: Plan) -> Verified:
        """Compares the files with the plan; removes wrong files, so that they are fetched again.

        Raises ArtifactDamaged.
        """
        pass_count = self._has_verify + self._request.verify
        self._progress.begin(
            ImportPhase.VERIFYING, done_bytes=0, total_bytes=plan.size * pass_count, file_count=len(plan.files)
        )
        if self._has_verify:
            await self._move_all(plan, self._download, self._verify, lambda: crash_point("artifact.transferred"))
        digests: dict[str, str] = {}
        wrong_paths: list[str] = []

        async def check(file: PlannedFile) -> None:
            digest = await self._digest_of(file) if self._request.verify else file.sha256 or ""
            if digest is None:
                wrong_paths.append(file.path)
            else:
                digests[file.path] = digest

        async for _ in bounded(plan.files, check, self._parallel):
            pass
        if wrong_paths:
            wrong_paths.sort()
            await self._verify.storage.delete([self._verify.prefix + path for path in wrong_paths])
            raise ArtifactDamaged(
                f"{len(wrong_paths)} files are not what the source announced: {wrong_paths[0][:256]!r} ...",
                data={"files": wrong_paths[:_MAX_NAMED_FILES], "count": len(wrong_paths)},
            )
        verified = Verified(attempt=plan.attempt, fingerprint=plan.fingerprint, sha256=digests)
        await self._download.storage.put(verified_key(self._revision), msgspec.json.encode(verified))
        crash_point("artifact.verified")
        return verified

    async def _digest_of(self, file: PlannedFile) -> str | None:
        """Returns the SHA-256 of a file, or None if its content differs from the announced one."""
        sha256_hash = hashlib.sha256()
        git_hash = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
        hashes = [sha256_hash, git_hash] if file.git_sha1 else [sha256_hash]
        read_bytes = 0
        async with aclosing(self._verify.storage.read(self._verify.prefix + file.path)) as parts:
            async for data in _gather_parts(parts):
                for content_hash in hashes:
                    await asyncio.to_thread(content_hash.update, data)
                read_bytes += len(data)
                self._progress.add(len(data))
        if read_bytes != file.size or (file.git_sha1 and git_hash.hexdigest() != file.git_sha1):
            return None
        return sha256_hash.hexdigest() if file.sha256 in (None, sha256_hash.hexdigest()) else None

    async def _publish(self, plan: Plan, verified: Verified) -> Manifest:
        self._progress.begin(ImportPhase.ARCHIVING, done_bytes=0, total_bytes=plan.size, file_count=len(plan.files))
        await self._move_all(plan, self._verify, self._archive, lambda: crash_point("artifact.moved"))
        manifest = Manifest(
            revision_id=self._revision,
            attempt=self._request.attempt,
            type=self._request.type,
            name=self._request.name,
            version=self._request.version,
            digest=plan.digest,
            source=plan.origin,
            archived_at=time.time(),
            files=tuple(
                ArtifactFile(path=file.path, size=file.size, sha256=verified.sha256.get(file.path, ""))
                for file in plan.files
            ),
            notes=notes_on(plan.files, is_verified=self._request.verify),
        )
        crash_point("artifact.archived")
        await self._archive.storage.put(manifest_key(self._revision), msgspec.json.encode(manifest))
        crash_point("artifact.published")
        await self.clean_up()
        return manifest

    async def clean_up(self) -> None:
        """Removes the files of earlier stages and of earlier attempts after the import."""
        for storage in {
            id(stage_storage): stage_storage for stage_storage in (self._download.storage, self._verify.storage)
        }.values():
            for area_name in ("pulling", "verifying", "incoming"):
                await storage.delete_prefix(area(area_name, self._revision))
        await drop_other_attempts(self._archive.storage, self._revision, self._request.attempt)

    async def _move_all(self, plan: Plan, source: _Stage, target: _Stage, on_moved: Callable[[], None]) -> None:
        async def move(file: PlannedFile) -> None:
            key, target_key = source.prefix + file.path, target.prefix + file.path
            try:
                if source.storage is target.storage:
                    await source.storage.move(key, target_key)
                    self._progress.add(file.size)
                else:
                    await transfer(source.storage, key, target.storage, target_key, file.size, self._progress.add)
                    await source.storage.delete([key])
            except NoSuchFile:
                if (await target.storage.stat(target_key)).size != file.size:
                    raise
                self._progress.add(file.size)
            on_moved()

        async for _ in bounded(plan.files, move, self._parallel):
            pass


def notes_on(files: Iterable[PlannedFile], *, is_verified: bool) -> tuple[str, ...]:
    """Returns the warnings about a revision's files: some may run code when loaded, or contents are not verified."""
    notes = []
    pickle_names = sorted(file.path for file in files if file.path.lower().endswith(_PICKLE_SUFFIXES))
    if pickle_names:
        notes.append(f"{len(pickle_names)} files may run code when they are loaded, such as {pickle_names[0][:256]}.")
    if not is_verified:
        notes.append("The contents were not verified.")
    return tuple(notes)


async def _gather_parts(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields the bytes of ``parts`` joined into larger parts, since each part goes to a thread and back."""
    gathered_data = bytearray()
    async for part in parts:
        gathered_data += part
        if len(gathered_data) >= _HASH_CHUNK_BYTES:
            yield bytes(gathered_data)
            gathered_data.clear()
    if gathered_data:
        yield bytes(gathered_data)
