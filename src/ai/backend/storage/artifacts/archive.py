"""Finds archived revisions, their files and their mountable copies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

import msgspec

from ai.backend.common.errors import ArtifactNotFound, BackendError, InternalError, NotSupported
from ai.backend.common.wire.artifacts import ArtifactPlace, FilesAnswer, FilesRequest, Manifest, MountState
from ai.backend.plugin.object_storage import ObjectCapability, ObjectStorage
from ai.backend.storage.artifacts.layout import drop_other_attempts, load_manifest, sizes_below, transfer
from ai.backend.storage.artifacts.model import files_of, manifest_key
from ai.backend.storage.artifacts.storages import Storages

log = logging.getLogger(__name__)
UrlOf: TypeAlias = Callable[[ObjectStorage, str, int, int | None], Awaitable[str]]
"""Returns a URL to GET an object, or to PUT one of a size: (storage, key, seconds of validity, size or None)."""


@dataclass(slots=True)
class _Copy:
    total: int
    current: int = 0
    error: BackendError | None = None
    work: asyncio.Task[None] | None = None

    def add(self, count: int) -> None:
        self.current += count


@dataclass(slots=True)
class Archive:
    """Finds and mounts archived revisions on all storages."""

    storages: Storages
    _copies: dict[UUID, _Copy] = field(default_factory=dict, init=False)

    async def find_all(self, revision: UUID) -> list[tuple[ObjectStorage, Manifest]]:
        """Returns the storages that have the revision: one, and perhaps the mount cache or that of an earlier import. A
        failing storage is skipped. Raises its error if no other storage has the revision."""
        archived = []
        failure: BackendError | None = None
        for storage in self.storages:
            try:
                manifest = await load_manifest(storage, revision)
            except BackendError as e:
                failure = e
                continue
            if manifest is not None:
                archived.append((storage, manifest))
        if failure is not None and not archived:
            raise failure
        return archived

    async def find(self, place: ArtifactPlace) -> tuple[ObjectStorage, Manifest]:
        """Returns the newest archived attempt, preferably on a storage that hosts can mount. Raises ArtifactNotFound:
        it is not archived there; VolumeNotFound."""
        if place.storage:
            storage = self.storages.get(place.storage)
            manifest = await load_manifest(storage, place.revision_id)
            if manifest is None:
                raise ArtifactNotFound("The revision is not archived there.", data={"storage": storage.name})
            return storage, manifest
        archived = await self.find_all(place.revision_id)
        if not archived:
            raise ArtifactNotFound("The revision is not archived here.")
        return max(archived, key=lambda pair: (pair[1].attempt, ObjectCapability.MOUNT in pair[0].capabilities))

    async def files(self, request: FilesRequest) -> FilesAnswer:
        """Returns a page of a revision's files. Raises as :meth:`find` does."""
        storage, manifest = await self.find(request)
        after = (request.cursor or "").encode()
        rest = [file for file in manifest.files if file.path.encode() > after]
        page = rest[: request.limit]
        return FilesAnswer(
            files=tuple(page),
            cursor=page[-1].path if len(rest) > len(page) else None,
            file_count=len(manifest.files),
            size=manifest.size,
            storage=storage.name,
        )

    async def file_key(self, place: ArtifactPlace, path: str) -> tuple[ObjectStorage, str]:
        """Returns the location of a file of a revision. Raises ArtifactNotFound, and as :meth:`find` does."""
        storage, manifest = await self.find(place)
        if not any(file.path == path for file in manifest.files):
            raise ArtifactNotFound("The revision has no such file.", data={"path": path[:256]})
        return storage, files_of("artifacts", manifest.revision_id, manifest.attempt) + path

    # Mounting

    async def mount(self, place: ArtifactPlace) -> MountState:
        """Returns the path of a revision on hosts; copies it to the mount cache first if they cannot mount its storage.
        Raises NotSupported: there is no mount cache; BackendError: as :meth:`find` does, or the error of the copy."""
        storage, manifest = await self.find(place)
        if ObjectCapability.MOUNT not in storage.capabilities:
            if not self.storages.mount_cache:
                raise NotSupported(
                    f"Hosts cannot mount what is on {storage.name}: archive on a volume, or set artifacts.mount-cache."
                )
            cache = self.storages.get(self.storages.mount_cache)
            copied = await load_manifest(cache, manifest.revision_id)
            if copied is None or copied.attempt != manifest.attempt:
                return self._copying(storage, cache, manifest)
            storage = cache
        path = await storage.mount_path(files_of("artifacts", manifest.revision_id, manifest.attempt))
        return MountState(path=str(path), current=manifest.size, total=manifest.size)

    def _copying(self, source: ObjectStorage, cache: ObjectStorage, manifest: Manifest) -> MountState:
        copy = self._copies.get(manifest.revision_id)
        if copy is not None and copy.work is None:
            del self._copies[manifest.revision_id]
            if copy.error is not None:
                raise copy.error  # to one request; the next one starts the copy again
            copy = None
        if copy is None:
            copy = self._copies[manifest.revision_id] = _Copy(total=manifest.size)
            copy.work = asyncio.create_task(self._copy(source, cache, manifest, copy))
        return MountState(path=None, current=copy.current, total=copy.total)

    async def _copy(self, source: ObjectStorage, cache: ObjectStorage, manifest: Manifest, copy: _Copy) -> None:
        prefix = files_of("artifacts", manifest.revision_id, manifest.attempt)
        try:
            sizes = await sizes_below(cache, prefix)
            for file in manifest.files:
                if sizes.get(file.path) == file.size:
                    copy.add(file.size)
                else:
                    key = prefix + file.path
                    await transfer(source, key, cache, key, file.size, copy.add)
            if await load_manifest(source, manifest.revision_id) != manifest:
                raise ArtifactNotFound("The revision was removed, or imported anew.")
            await cache.put(manifest_key(manifest.revision_id), msgspec.json.encode(manifest))
            await drop_other_attempts(cache, manifest.revision_id, manifest.attempt)
        except BackendError as e:
            copy.error = e
            log.warning("%s could not be copied to %s: %s", manifest.revision_id, cache.name, e.message)
        except Exception:
            copy.error = InternalError()
            log.exception("%s could not be copied to %s", manifest.revision_id, cache.name)
        finally:
            copy.work = None

    async def cancel_copy(self, revision: UUID) -> None:
        """Cancels the copy of a revision; copied objects stay."""
        copy = self._copies.pop(revision, None)
        if copy is not None and (work := copy.work) is not None:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def stop(self) -> None:
        for revision in list(self._copies):
            await self.cancel_copy(revision)
