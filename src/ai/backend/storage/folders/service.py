"""Clones and deletes folders, and changes several files at once."""

from __future__ import annotations

import logging

from ai.backend.common.errors import BackendError, StorageFull, VolumeNotFound
from ai.backend.common.volume_paths import FolderPath, VFolderId
from ai.backend.plugin.volume import AbstractVolume, Progress
from ai.backend.storage.tasks import Task, Tasks
from ai.backend.storage.volumes.quotas import QuotaAccounting
from ai.backend.storage.volumes.registry import Volumes

log = logging.getLogger(__name__)


def _key(volume: AbstractVolume, folder: VFolderId) -> str:
    return f"{volume.name}:{folder}"


class Folders:
    """Executes requests of managers that need several calls of a volume."""

    def __init__(self, volumes: Volumes, quota: QuotaAccounting, tasks: Tasks) -> None:
        self._volumes = volumes
        self._quota = quota
        self._tasks = tasks

    async def resume(self) -> None:
        """Resumes the clones that an earlier process has left unfinished."""
        for target_volume in self._volumes:
            for clone in await target_volume.unfinished_clones():
                try:
                    source_volume = self._volumes.get(clone.source_volume)
                except VolumeNotFound:
                    log.warning("a clone from %s to %s waits for that volume", clone.source_volume, clone.target)
                    continue
                self.clone(source_volume, clone.source, target_volume, clone.target)

    def clone(
        self, source_volume: AbstractVolume, source: VFolderId, target_volume: AbstractVolume, target: VFolderId
    ) -> Task:
        """Copies a folder in the background; the task ends at once if the target exists."""

        async def work(progress: Progress) -> None:
            if await target_volume.has_folder(target):
                return
            size = (await source_volume.folder_usage(source)).used_bytes
            await self._quota.reserve(target_volume, target.scope, size)
            published = False
            try:
                await source_volume.clone_folder(source, target_volume, target, progress)
                published = not progress.is_cancelled
            except StorageFull as e:
                raise await self._quota.reason(target_volume, target.scope, e) from None
            finally:
                self._quota.settle(target_volume, target.scope, size, published=published)

        return self._tasks.start("clone", _key(target_volume, target), work)

    async def delete(self, volume: AbstractVolume, folder: VFolderId) -> None:
        """Also ends a clone into it."""
        self._tasks.cancel(_key(volume, folder))
        await volume.delete_folder(folder)
        self._quota.touch(volume, folder.scope)

    async def delete_files(
        self, volume: AbstractVolume, folder: VFolderId, paths: list[FolderPath], *, recursive: bool
    ) -> None:
        try:
            await volume.delete_files(folder, paths, recursive=recursive)
        finally:
            self._quota.touch(volume, folder.scope)

    async def make_directories(
        self, volume: AbstractVolume, folder: VFolderId, texts: list[str], *, parents: bool, exist_ok: bool
    ) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Which were made, and which not, each with a message."""
        made: list[tuple[str, str]] = []
        failed: list[tuple[str, str]] = []
        for text in texts:
            try:
                await volume.make_directory(folder, FolderPath.parse(text), parents=parents, exist_ok=exist_ok)
            except BackendError as e:
                failed.append((text, e.message))
            else:
                made.append((text, "made"))
        return made, failed
