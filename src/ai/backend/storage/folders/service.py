"""Clones and deletes folders, and changes several files at once."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ai.backend.common.errors import BackendError, StorageFull, VolumeNotFound
from ai.backend.common.volume_paths import FolderPath, VFolderId
from ai.backend.plugin.volume import AbstractVolume, Progress
from ai.backend.storage.tasks import Task, Tasks
from ai.backend.storage.volumes.quotas import QuotaAccounting
from ai.backend.storage.volumes.registry import Volumes

log = logging.getLogger(__name__)


def _task_key(volume: AbstractVolume, folder: VFolderId) -> str:
    return f"{volume.name}:{folder}"


@dataclass(slots=True)
class Folders:
    """Executes requests of managers that need several calls of a volume."""

    volumes: Volumes
    quota: QuotaAccounting
    tasks: Tasks

    async def resume(self) -> None:
        """Resumes the unfinished clones of an earlier process."""
        for target_volume in self.volumes:
            for clone in await target_volume.unfinished_clones():
                try:
                    source_volume = self.volumes.get(clone.source_volume)
                except VolumeNotFound:
                    log.warning("a clone from %s to %s waits for that volume", clone.source_volume, clone.target)
                    continue
                self.clone(source_volume, clone.source, target_volume, clone.target)

    def clone(
        self, source_volume: AbstractVolume, source: VFolderId, target_volume: AbstractVolume, target: VFolderId
    ) -> Task:
        """Copies a folder in the background; the task ends at once if the target exists."""

        async def copy_folder(progress: Progress) -> None:
            if await target_volume.has_folder(target):
                return
            size = (await source_volume.folder_usage(source)).used_bytes
            await self.quota.reserve(target_volume, target.scope, size)
            is_published = False
            try:
                await source_volume.clone_folder(source, target_volume, target, progress)
                is_published = not progress.is_cancelled
            except StorageFull as e:
                raise await self.quota.error_of_full_volume(target_volume, target.scope, e) from None
            finally:
                self.quota.end_reservation(target_volume, target.scope, size, is_published=is_published)

        return self.tasks.start("clone", _task_key(target_volume, target), copy_folder)

    async def delete(self, volume: AbstractVolume, folder: VFolderId) -> None:
        """Deletes a folder and cancels a clone into it."""
        self.tasks.cancel(_task_key(volume, folder))
        await volume.delete_folder(folder)
        self.quota.mark_outdated(volume, folder.scope)

    async def delete_files(
        self, volume: AbstractVolume, folder: VFolderId, paths: list[FolderPath], *, recursive: bool
    ) -> None:
        try:
            await volume.delete_files(folder, paths, recursive=recursive)
        finally:
            self.quota.mark_outdated(volume, folder.scope)

    async def make_directories(
        self, volume: AbstractVolume, folder: VFolderId, path_texts: list[str], *, parents: bool, exist_ok: bool
    ) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Returns the created directories and the failed ones, each with a message."""
        created_paths: list[tuple[str, str]] = []
        failed_paths: list[tuple[str, str]] = []
        for path_text in path_texts:
            try:
                await volume.make_directory(folder, FolderPath.parse(path_text), parents=parents, exist_ok=exist_ok)
            except BackendError as e:
                failed_paths.append((path_text, e.message))
            else:
                created_paths.append((path_text, "made"))
        return created_paths, failed_paths
