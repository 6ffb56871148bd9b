"""Manager-facing routes of folders and tasks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any
from uuid import UUID

import msgspec

from ai.backend.common.ids import TaskId
from ai.backend.common.volume_paths import FolderPath, VFolderId
from ai.backend.infra.http.errors import problem
from ai.backend.infra.http.routes import Call, Schema, route
from ai.backend.storage.folders.service import Folders
from ai.backend.storage.tasks import TaskStatus
from ai.backend.storage.volumes.schemas import FolderParams


class CreateBody(FolderParams, frozen=True, kw_only=True):
    mode: Annotated[int, msgspec.Meta(ge=0, le=0o777)] = 0o755


class CloneBody(Schema, frozen=True, kw_only=True):
    src_volume: str
    src_vfid: str
    dst_volume: str
    dst_vfid: str


class TaskParams(Schema, frozen=True, kw_only=True):
    task_id: UUID


class MountParams(FolderParams, frozen=True, kw_only=True):
    subpath: str = "."


@dataclass(slots=True)
class FolderApi:
    """Routes about folders and tasks."""

    folders: Folders

    @route("POST", "/folder/create", body=CreateBody)
    async def create(self, call: Call[CreateBody]) -> None:
        """Creates a folder; does nothing if it exists."""
        volume, folder = self.folders.volumes.locate(call.body.volume, call.body.vfid)
        await volume.create_folder(folder, mode=call.body.mode)

    @route("POST", "/folder/delete", body=FolderParams)
    async def delete(self, call: Call[FolderParams]) -> None:
        """Deletes a folder and cancels a clone into it."""
        await self.folders.delete(*self.folders.volumes.locate(call.body.volume, call.body.vfid))

    @route("POST", "/folder/clone", body=CloneBody, status=202)
    async def clone(self, call: Call[CloneBody]) -> dict[str, str]:
        """Copies a folder in the background."""
        body = call.body
        task = self.folders.clone(
            self.folders.volumes.get(body.src_volume),
            VFolderId.parse(body.src_vfid),
            self.folders.volumes.get(body.dst_volume),
            VFolderId.parse(body.dst_vfid),
        )
        return {"bgtask_id": str(task.id)}

    @route("GET", "/task", query=TaskParams)
    async def task(self, call: Call[Any, TaskParams]) -> dict[str, Any]:
        """Returns the progress of a task."""
        task = self.folders.tasks.get(TaskId(call.query.task_id))
        skipped = f" {task.progress.skipped} special files were left out." if task.progress.skipped else ""
        return {
            "task_id": str(task.id),
            "kind": task.kind,
            "status": task.status.value,
            "current": task.progress.current,
            "total": max(task.progress.total, task.progress.current),
            "files": task.progress.files,
            "message": task.error.message if task.error else f"{task.progress.files} files.{skipped}",
            "error": problem(task.error) if task.error else None,
        }

    @route("DELETE", "/task", query=TaskParams)
    async def cancel_task(self, call: Call[Any, TaskParams]) -> None:
        """Cancels a task."""
        task = self.folders.tasks.get(TaskId(call.query.task_id))
        if task.status == TaskStatus.RUNNING:
            self.folders.tasks.cancel(task.key)

    @route("GET", "/folder/mount", query=MountParams)
    async def mount(self, call: Call[Any, MountParams]) -> dict[str, str]:
        """Returns the path of a folder on the nodes."""
        volume, folder = self.folders.volumes.locate(call.query.volume, call.query.vfid)
        return {"path": str(await volume.mount_path(folder, FolderPath.parse(call.query.subpath)))}

    @route("GET", "/folder/usage", query=FolderParams)
    async def usage(self, call: Call[Any, FolderParams]) -> dict[str, int]:
        """Returns files and bytes of a folder."""
        volume, folder = self.folders.volumes.locate(call.query.volume, call.query.vfid)
        return asdict(await volume.folder_usage(folder))

    @route("GET", "/folder/used-bytes", query=FolderParams)
    async def used_bytes(self, call: Call[Any, FolderParams]) -> dict[str, int]:
        """Returns the bytes of a folder on the disk."""
        volume, folder = self.folders.volumes.locate(call.query.volume, call.query.vfid)
        return {"used_bytes": (await volume.folder_usage(folder)).used_bytes}
