"""Finds the storages of artifacts, the archived revisions with their files, and their copies that hosts can mount.

On a volume artifacts lie in ``.artifacts`` at its top, beside the quota scopes: see docs/decisions/0094.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar
from uuid import UUID

import msgspec

from ai.backend.common.errors import (
    ArtifactNotFound,
    BackendError,
    InternalError,
    InvalidInput,
    InvalidPath,
    NoSuchFile,
    NotSupported,
    Unavailable,
    VolumeNotFound,
)
from ai.backend.common.wire.artifacts import ArtifactPlace, FilesAnswer, FilesRequest, Manifest, MountState
from ai.backend.plugin.object_storage import ObjectCapability, ObjectStorage, ObjectUpload, StorageContext
from ai.backend.storage.artifacts.model import MAX_RECORD_BYTES, area, files_of, manifest_key
from ai.backend.storage.config.settings import StorageSettings
from ai.backend.storage.volumes.registry import Backends, Volumes, load_backend
from ai.backend.volume.object.directory import DirectoryStorage

VOLUME_ARTIFACTS_DIRECTORY = ".artifacts"


class Storages(Backends[ObjectStorage]):
    """Starts and stops the object storages, and finds a storage by its name or as the default of a stage.

    Raises InvalidInput: a name stands for two storages, or a stage names none.
    """

    def __init__(self, settings: StorageSettings, volumes: Volumes) -> None:
        context = StorageContext(owner=settings.storage_proxy.owner)
        storages: dict[str, ObjectStorage] = {
            volume.name: DirectoryStorage(volume.name, {"path": volume.path / VOLUME_ARTIFACTS_DIRECTORY}, context)
            for volume in volumes
        }
        self._own = settings.object_storage
        for name, storage in self._own.items():
            if name in storages:
                raise InvalidInput(f"{name!r} names both a volume and an object storage.")
            storages[name] = load_backend(storage.backend, ObjectStorage)(name, storage.options, context)
        super().__init__(storages)
        artifact_settings = settings.artifacts
        archive = artifact_settings.archive or next(iter(storages), "")
        download = artifact_settings.download or archive
        self.defaults = {"download": download, "verify": artifact_settings.verify or download, "archive": archive}
        self.mount_cache = artifact_settings.mount_cache
        for name in {*self.defaults.values(), self.mount_cache} - {""}:
            if name not in storages:
                raise InvalidInput(f"artifacts: there is no storage {name!r}.")

    async def start(self) -> None:
        """Starts the object storages; volumes need nothing. Raises InvalidInput if one is unusable."""
        for storage in self:
            self._stack.push_async_callback(storage.stop)
            if storage.name in self._own:
                await storage.start()

    def get(self, name: str) -> ObjectStorage:
        """Returns a storage. Raises VolumeNotFound."""
        try:
            return self._backends[name]
        except KeyError:
            raise VolumeNotFound(
                f"There is no storage {name[:64]!r}." if name else "This proxy has no storage for artifacts.",
                data={"storage": name[:64]},
            ) from None

    def of_stage(self, stage: str, name: str) -> ObjectStorage:
        """Returns the named storage, or the default of a stage. Raises VolumeNotFound."""
        return self.get(name or self.defaults[stage])


T = TypeVar("T")


async def load_record(storage: ObjectStorage, key: str, record_type: type[T]) -> T | None:
    """Returns a record of a revision, or None if no record is readable."""
    try:
        return msgspec.json.decode(await storage.get(key, limit=MAX_RECORD_BYTES), type=record_type)
    except (NoSuchFile, InvalidPath, msgspec.MsgspecError):
        return None


async def load_manifest(storage: ObjectStorage, revision: UUID) -> Manifest | None:
    """Returns the manifest of a revision, or None if the storage has no archive of it."""
    return await load_record(storage, manifest_key(revision), Manifest)


async def sizes_below(storage: ObjectStorage, prefix: str) -> dict[str, int]:
    """Returns the size in bytes of each object below a prefix, by path."""
    size_by_path: dict[str, int] = {}
    cursor: str | None = None
    while True:
        object_page = await storage.list(prefix, cursor=cursor)
        size_by_path |= {info.key.removeprefix(prefix): info.size for info in object_page.objects}
        if (cursor := object_page.cursor) is None:
            return size_by_path


async def transfer(
    source: ObjectStorage, key: str, target: ObjectStorage, target_key: str, size: int, report: Callable[[int], None]
) -> None:
    """Copies an object to another storage, resuming a partial copy; ``report`` receives the bytes added.

    Raises NoSuchFile: the source does not exist.
    """
    await source.stat(key)
    upload = await upload_of(target, target_key, size)
    try:
        report(upload.offset)
        async with aclosing(source.read(key, offset=upload.offset)) as received_parts:
            async for received_part in received_parts:
                await upload.write(received_part)
                report(len(received_part))
        if upload.offset != size:
            raise Unavailable("An object was cut short while it was copied.", data={"key": key[:256]})
        await upload.publish()
    finally:
        await upload.close()


async def upload_of(storage: ObjectStorage, key: str, size: int) -> ObjectUpload:
    """Opens an upload of ``size`` bytes to an object, and resumes a partial upload of the object.

    A longer partial upload is discarded, since it belongs to another file.
    """
    upload = await storage.open_upload(key, size=size)
    if upload.offset > size:
        await upload.abort()
        upload = await storage.open_upload(key, size=size)
    return upload


async def drop_other_attempts(storage: ObjectStorage, revision: UUID, attempt: int) -> None:
    """Removes all files of a revision except the manifest and the files that the given attempt has imported."""
    revision_prefix = area("artifacts", revision)
    kept_prefixes = (files_of("artifacts", revision, attempt), manifest_key(revision))
    await storage.delete(
        [
            revision_prefix + path
            for path in await sizes_below(storage, revision_prefix)
            if not (revision_prefix + path).startswith(kept_prefixes)
        ]
    )


log = logging.getLogger(__name__)
UrlOf: TypeAlias = Callable[[ObjectStorage, str, int, int | None], Awaitable[str]]
"""Returns a URL to GET an object, or to PUT an object of a given size: (storage, key, seconds of validity, size or
None).
"""


@dataclass(slots=True)
class _MountCopy:
    total_bytes: int
    copied_bytes: int = 0
    error: BackendError | None = None
    task: asyncio.Task[None] | None = None

    def add(self, byte_count: int) -> None:
        self.copied_bytes += byte_count


@dataclass(slots=True)
class Archive:
    """Finds and mounts archived revisions on all storages."""

    storages: Storages
    _copies: dict[UUID, _MountCopy] = field(default_factory=dict, init=False)

    async def find_all(self, revision: UUID) -> list[tuple[ObjectStorage, Manifest]]:
        """Returns every storage that has an archive of the revision, with the revision's manifest.

        There may be several: the mount cache, or the storage of an earlier import. A failing storage is skipped. Raises
        its error if no other storage has the revision.
        """
        archived_copies = []
        last_error: BackendError | None = None
        for storage in self.storages:
            try:
                manifest = await load_manifest(storage, revision)
            except BackendError as e:
                last_error = e
                continue
            if manifest is not None:
                archived_copies.append((storage, manifest))
        if last_error is not None and not archived_copies:
            raise last_error
        return archived_copies

    async def find(self, place: ArtifactPlace) -> tuple[ObjectStorage, Manifest]:
        """Returns the storage and the manifest of a revision's newest archived attempt.

        Prefers a storage that hosts can mount. Raises ArtifactNotFound: the revision is not archived there;
        VolumeNotFound.
        """
        if place.storage:
            storage = self.storages.get(place.storage)
            manifest = await load_manifest(storage, place.revision_id)
            if manifest is None:
                raise ArtifactNotFound("The revision is not archived there.", data={"storage": storage.name})
            return storage, manifest
        archived_copies = await self.find_all(place.revision_id)
        if not archived_copies:
            raise ArtifactNotFound("The revision is not archived here.")
        return max(archived_copies, key=lambda copy: (copy[1].attempt, ObjectCapability.MOUNT in copy[0].capabilities))

    async def files(self, request: FilesRequest) -> FilesAnswer:
        """Returns a page of a revision's files. Raises as :meth:`find` does."""
        storage, manifest = await self.find(request)
        cursor_key = (request.cursor or "").encode()
        remaining_files = [file for file in manifest.files if file.path.encode() > cursor_key]
        page = remaining_files[: request.limit]
        return FilesAnswer(
            files=tuple(page),
            cursor=page[-1].path if len(remaining_files) > len(page) else None,
            file_count=len(manifest.files),
            size=manifest.size,
            storage=storage.name,
        )

    async def file_key(self, place: ArtifactPlace, path: str) -> tuple[ObjectStorage, str]:
        """Returns the location of a file of a revision. Raises ArtifactNotFound, and as :meth:`find` does."""
        storage, manifest = await self.find(place)
        if not any(archived_file.path == path for archived_file in manifest.files):
            raise ArtifactNotFound("The revision has no such file.", data={"path": path[:256]})
        return storage, files_of("artifacts", manifest.revision_id, manifest.attempt) + path

    async def mount(self, place: ArtifactPlace) -> MountState:
        """Returns the path of a revision on hosts, from the mount cache if hosts cannot mount its storage.

        If the mount cache lacks the revision, starts a copy to it in the background, and returns the copy's progress
        without a path.

        Raises NotSupported: there is no mount cache; BackendError: as :meth:`find` does, or the error of the copy.
        """
        storage, manifest = await self.find(place)
        if ObjectCapability.MOUNT not in storage.capabilities:
            if not self.storages.mount_cache:
                raise NotSupported(
                    f"Hosts cannot mount what is on {storage.name}: archive on a volume, or set artifacts.mount-cache."
                )
            mount_cache = self.storages.get(self.storages.mount_cache)
            cached_manifest = await load_manifest(mount_cache, manifest.revision_id)
            if cached_manifest is None or cached_manifest.attempt != manifest.attempt:
                return self._copy_progress(storage, mount_cache, manifest)
            storage = mount_cache
        path = await storage.mount_path(files_of("artifacts", manifest.revision_id, manifest.attempt))
        return MountState(path=str(path), current=manifest.size, total=manifest.size)

    def _copy_progress(self, source: ObjectStorage, cache: ObjectStorage, manifest: Manifest) -> MountState:
        mount_copy = self._copies.get(manifest.revision_id)
        if mount_copy is not None and mount_copy.task is None:
            del self._copies[manifest.revision_id]
            if mount_copy.error is not None:
                raise mount_copy.error  # to one request; the next one starts the copy again
            mount_copy = None
        if mount_copy is None:
            mount_copy = self._copies[manifest.revision_id] = _MountCopy(total_bytes=manifest.size)
            mount_copy.task = asyncio.create_task(self._copy(source, cache, manifest, mount_copy))
        return MountState(path=None, current=mount_copy.copied_bytes, total=mount_copy.total_bytes)

    async def _copy(
        self, source: ObjectStorage, cache: ObjectStorage, manifest: Manifest, mount_copy: _MountCopy
    ) -> None:
        prefix = files_of("artifacts", manifest.revision_id, manifest.attempt)
        try:
            size_by_path = await sizes_below(cache, prefix)
            for file in manifest.files:
                if size_by_path.get(file.path) == file.size:
                    mount_copy.add(file.size)
                else:
                    key = prefix + file.path
                    await transfer(source, key, cache, key, file.size, mount_copy.add)
            if await load_manifest(source, manifest.revision_id) != manifest:
                raise ArtifactNotFound("The revision was removed, or imported anew.")
            await cache.put(manifest_key(manifest.revision_id), msgspec.json.encode(manifest))
            await drop_other_attempts(cache, manifest.revision_id, manifest.attempt)
        except BackendError as e:
            mount_copy.error = e
            log.warning("%s could not be copied to %s: %s", manifest.revision_id, cache.name, e.message)
        except Exception:
            mount_copy.error = InternalError()
            log.exception("%s could not be copied to %s", manifest.revision_id, cache.name)
        finally:
            mount_copy.task = None

    async def cancel_copy(self, revision: UUID) -> None:
        """Cancels the copy of a revision to the mount cache; copied objects stay."""
        mount_copy = self._copies.pop(revision, None)
        if mount_copy is not None and (task := mount_copy.task) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def stop(self) -> None:
        for revision in list(self._copies):
            await self.cancel_copy(revision)
