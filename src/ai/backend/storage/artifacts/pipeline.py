"""One import from its source to the archive: download, verify, archive.

Nothing says how far it is but the files themselves: what lies in a stage's place with the planned size is through that
stage. So a run that was killed anywhere is gone on with by running it again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Protocol

import msgspec

from ai.backend.common.errors import (
    ArtifactDamaged,
    ArtifactIncomplete,
    InvalidPath,
    NoSuchFile,
    RegistryUnavailable,
    StaleAttempt,
)
from ai.backend.common.wire.artifacts import ArtifactFile, ImportPhase, ImportRequest, Manifest
from ai.backend.infra.retry import Backoff
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.object_storage import ObjectStorage
from ai.backend.storage.artifacts.fetcher import RangeIgnored
from ai.backend.storage.artifacts.layout import (
    drop_other_attempts,
    load_plan,
    sizes_below,
    transfer,
    upload_of,
)
from ai.backend.storage.artifacts.model import (
    MAX_RECORD,
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
from ai.backend.storage.artifacts.sources import FileSource

log = logging.getLogger(__name__)
_TRIES = 4
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.5, 10.0
_NAMED_FILES = 10
_HASH_BYTES = 1 << 20
_PICKLES = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth", ".joblib")


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


class Progress(Protocol):
    """Who wants to know how far an import is."""

    def begin(self, phase: ImportPhase, *, current: int, total: int, files: int) -> None: ...
    def add(self, count: int) -> None: ...


class Pipeline:
    """One import.

    Args:
        source: None: what was uploaded.
        download, verify, archive: the storage of each stage.
        parallel: files that are worked on at once.
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
        self._request = request
        self._revision = request.revision_id
        self._source = source
        self._download = download
        self._verify = verify
        self._archive = archive
        self._limits = limits
        self._parallel = parallel
        self._progress = progress
        own_verify = verify is not download
        self._pulling = files_of("pulling", self._revision)
        self._verifying = files_of("verifying", self._revision) if own_verify else self._pulling
        self._archived = files_of("artifacts", self._revision, request.attempt)

    async def run(self) -> Manifest:
        """All stages.

        Raises:
            ArtifactChanged, ArtifactRejected, ArtifactIncomplete, ArtifactDamaged, ArtifactNotFound, StaleAttempt:
                what is right of the files stays for the next try.
            BackendError: a registry or a storage fails.
        """
        plan = await self._planned()
        verified = await self._load_verified(plan)
        if verified is None:
            await self._fetch(plan)
            verified = await self._check(plan)
        return await self._keep(plan, verified)

    # What it will be

    async def _planned(self) -> Plan:
        old = await load_plan(self._download, self._revision)
        if old is not None and old.attempt > self._request.attempt:
            raise StaleAttempt(data={"attempt": old.attempt})
        if self._source is None:
            if old is None or old.attempt != self._request.attempt:
                raise ArtifactIncomplete("Nothing was uploaded for this attempt.")
            return old
        if old is not None and old.attempt == self._request.attempt and await self._load_verified(old) is not None:
            return old  # all is here: the source need not even answer
        new = await self._source.plan(self._request.attempt, old.digest if old else None)
        new = msgspec.structs.replace(new, files=check_files(new.files, self._limits))
        if old is None or old.fingerprint != new.fingerprint:
            await self._download.delete_prefix(area("pulling", self._revision))
            await self._verify.delete_prefix(area("verifying", self._revision))
        if old != new:
            await self._download.put(plan_key(self._revision), msgspec.json.encode(new))
        crash_point("artifact.planned")
        return new

    # Download

    async def _fetch(self, plan: Plan) -> None:
        have = await sizes_below(self._download, self._pulling)
        if self._verify is not self._download:
            have |= await sizes_below(self._verify, self._verifying)
        missing = [file for file in plan.files if have.get(file.path) != file.size]
        current = plan.size - sum(file.size for file in missing)
        self._progress.begin(ImportPhase.DOWNLOADING, current=current, total=plan.size, files=len(plan.files))
        if self._source is None:
            await self._take_in(missing)
        else:
            source = self._source
            await _each(missing, lambda file: self._fetch_file(source, plan, file), self._parallel)
        crash_point("artifact.downloaded")

    async def _take_in(self, missing: Sequence[PlannedFile]) -> None:
        """Files of users, out of the reach of whoever still has a URL to put them."""
        incoming = files_of("incoming", self._revision)
        have = await sizes_below(self._download, incoming)
        lacking = [file.path for file in missing if have.get(file.path) != file.size]
        if lacking:
            raise ArtifactIncomplete(
                f"{len(lacking)} files were not uploaded, or with another size.",
                data={"missing": lacking[:_NAMED_FILES], "count": len(lacking)},
            )
        for file in missing:
            await self._download.move(incoming + file.path, self._pulling + file.path)
            self._progress.add(file.size)
            crash_point("artifact.file")

    async def _fetch_file(self, source: FileSource, plan: Plan, file: PlannedFile) -> None:
        """Try some times, each time from the byte where it broke off."""
        upload = await upload_of(self._download, self._pulling + file.path, file.size)
        told = 0
        backoff = Backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
        try:
            while True:
                self._progress.add(upload.offset - told)
                told = begun = upload.offset
                try:
                    if upload.offset < file.size or not file.size:
                        async with aclosing(source.fetch(plan, file, upload.offset)) as parts:
                            async for part in parts:
                                await upload.write(part)
                                self._progress.add(len(part))
                                told += len(part)
                                crash_point("artifact.part")
                    break
                except RangeIgnored:
                    await upload.abort()
                    upload = await upload_of(self._download, self._pulling + file.path, file.size)
                except RegistryUnavailable:
                    if upload.offset > begun:
                        backoff.reset()
                    if backoff.failures + 1 == _TRIES:
                        raise
                    await backoff.wait()
            await upload.publish()
            crash_point("artifact.file")
        finally:
            await upload.close()

    # Verify

    async def _load_verified(self, plan: Plan) -> Verified | None:
        try:
            data = await self._download.get(verified_key(self._revision), limit=MAX_RECORD)
            found = msgspec.json.decode(data, type=Verified)
        except (NoSuchFile, InvalidPath, msgspec.MsgspecError):
            return None
        is_of_this = (found.attempt, found.fingerprint) == (plan.attempt, plan.fingerprint)
        return found if is_of_this else None

    async def _check(self, plan: Plan) -> Verified:
        """Compare what has come with what was announced; what is wrong is removed, so that it is fetched again.

        Raises:
            ArtifactDamaged.
        """
        passes = (self._verify is not self._download) + self._request.verify
        self._progress.begin(ImportPhase.VERIFYING, current=0, total=plan.size * passes, files=len(plan.files))
        if self._verify is not self._download:
            await _each(plan.files, self._to_verify, self._parallel)
        digests: dict[str, str] = {}
        wrong: list[str] = []

        async def one(file: PlannedFile) -> None:
            found = await self._digest_of(file) if self._request.verify else file.sha256 or ""
            if found is None:
                wrong.append(file.path)
            else:
                digests[file.path] = found

        await _each(plan.files, one, self._parallel)
        if wrong:
            wrong.sort()
            await self._verify.delete([self._verifying + path for path in wrong])
            raise ArtifactDamaged(
                f"{len(wrong)} files are not what the source announced: {wrong[0][:256]!r} ...",
                data={"files": wrong[:_NAMED_FILES], "count": len(wrong)},
            )
        verified = Verified(attempt=plan.attempt, fingerprint=plan.fingerprint, sha256=digests)
        await self._download.put(verified_key(self._revision), msgspec.json.encode(verified))
        crash_point("artifact.verified")
        return verified

    async def _to_verify(self, file: PlannedFile) -> None:
        await self._carry(self._download, self._pulling, self._verify, self._verifying, file, self._progress.add)
        crash_point("artifact.transferred")

    async def _digest_of(self, file: PlannedFile) -> str | None:
        """The SHA-256; None: the content is another one than announced."""
        sha256 = hashlib.sha256()
        digests: list[_Digest] = [sha256]
        git = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False) if file.git_sha1 else None
        if git is not None:
            digests.append(git)
        count = 0
        async with aclosing(self._verify.read(self._verifying + file.path)) as parts:
            async for data in _gathered(parts):
                for digest in digests:
                    await asyncio.to_thread(digest.update, data)
                count += len(data)
                self._progress.add(len(data))
        is_right = (
            count == file.size
            and file.sha256 in (None, sha256.hexdigest())
            and (git is None or git.hexdigest() == file.git_sha1)
        )
        return sha256.hexdigest() if is_right else None

    # Archive

    async def _keep(self, plan: Plan, verified: Verified) -> Manifest:
        self._progress.begin(ImportPhase.ARCHIVING, current=0, total=plan.size, files=len(plan.files))
        await _each(plan.files, self._to_archive, self._parallel)
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
        await self._archive.put(manifest_key(self._revision), msgspec.json.encode(manifest))
        crash_point("artifact.published")
        await self.tidy()
        return manifest

    async def _to_archive(self, file: PlannedFile) -> None:
        await self._carry(self._verify, self._verifying, self._archive, self._archived, file, self._progress.add)
        crash_point("artifact.moved")

    async def tidy(self) -> None:
        """Remove what an import that is archived needs no more, and what earlier attempts have archived."""
        for storage in {id(s): s for s in (self._download, self._verify)}.values():
            for name in ("pulling", "verifying", "incoming"):
                await storage.delete_prefix(area(name, self._revision))
        await drop_other_attempts(self._archive, self._revision, self._request.attempt)

    async def _carry(
        self,
        source: ObjectStorage,
        source_prefix: str,
        target: ObjectStorage,
        target_prefix: str,
        file: PlannedFile,
        told: Callable[[int], None],
    ) -> None:
        """Move a file from one stage to the next; done before is done."""
        key, target_key = source_prefix + file.path, target_prefix + file.path
        try:
            if source is target:
                await source.move(key, target_key)
                told(file.size)
            else:
                await transfer(source, key, target, target_key, file.size, told)
                await source.delete([key])
        except NoSuchFile:
            if (await target.stat(target_key)).size != file.size:
                raise
            told(file.size)


def notes_on(files: Iterable[PlannedFile], *, is_verified: bool) -> tuple[str, ...]:
    """What whoever uses these files should know."""
    notes = []
    pickles = sorted(file.path for file in files if file.path.lower().endswith(_PICKLES))
    if pickles:
        notes.append(f"{len(pickles)} files may run code when they are loaded, such as {pickles[0][:256]}.")
    if not is_verified:
        notes.append("The contents were not verified.")
    return tuple(notes)


async def _each(files: Sequence[PlannedFile], work: Callable[[PlannedFile], Awaitable[None]], parallel: int) -> None:
    """Some at once; the first error ends the others where they are."""
    waiting = iter(files)

    async def worker() -> None:
        for file in waiting:
            await work(file)

    workers = [asyncio.create_task(worker()) for _ in range(min(parallel, len(files)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for one in workers:
            one.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _gathered(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in larger pieces: each goes to a thread and back."""
    buffer = bytearray()
    async for part in parts:
        buffer += part
        if len(buffer) >= _HASH_BYTES:
            yield bytes(buffer)
            buffer.clear()
    if buffer:
        yield bytes(buffer)
