"""The manager-facing API (peer facts 5; docs/reference/storage-proxy-api.md)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any
from uuid import UUID

import msgspec
from aiohttp import web

from ai.backend.common.errors import InvalidInput, NotSupported, WrongKindOfFile
from ai.backend.common.ids import TaskId
from ai.backend.common.volume_paths import FolderPath, QuotaScopeId, VFolderId
from ai.backend.infra.http.errors import problem
from ai.backend.infra.http.routes import Call, Reply, Schema, route
from ai.backend.plugin.volume import AbstractVolume, FileEntry, FileKind, VolumeCapability
from ai.backend.storage.api.sending import send_file
from ai.backend.storage.model.claims import ArchiveClaims, Claims, DownloadClaims
from ai.backend.storage.services.folders import Folders
from ai.backend.storage.services.quota import QuotaBook
from ai.backend.storage.services.tasks import Tasks, TaskStatus
from ai.backend.storage.services.tokens import Tokens
from ai.backend.storage.services.uploads import Uploads
from ai.backend.storage.services.volumes import Volumes

Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class VolumeParams(Schema, frozen=True, kw_only=True):
    volume: str


class SomeVolumeParams(Schema, frozen=True, kw_only=True):
    volume: str | None = None


class ScopeParams(VolumeParams, frozen=True, kw_only=True):
    qsid: str


class QuotaOptions(Schema, frozen=True, kw_only=True):
    limit_bytes: Bytes | None = None


class ScopeBody(ScopeParams, frozen=True, kw_only=True):
    options: QuotaOptions | None = None


class FolderParams(VolumeParams, frozen=True, kw_only=True):
    vfid: str


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


class FileBody(FolderParams, frozen=True, kw_only=True):
    relpath: str


class ListBody(FolderParams, frozen=True, kw_only=True):
    relpath: str = "."
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    cursor: str | None = None


class MkdirBody(FolderParams, frozen=True, kw_only=True):
    relpath: str | list[str]
    parents: bool = True
    exist_ok: bool = False


class RenameBody(FileBody, frozen=True, kw_only=True):
    new_name: str


class MoveBody(FolderParams, frozen=True, kw_only=True):
    src_relpath: str
    dst_relpath: str


class DeleteBody(FolderParams, frozen=True, kw_only=True):
    relpaths: list[str]
    recursive: bool = False


class DownloadBody(FileBody, frozen=True, kw_only=True):
    archive: bool = False


class ArchiveBody(FolderParams, frozen=True, kw_only=True):
    files: list[str]
    filename: str | None = None


class UploadBody(FileBody, frozen=True, kw_only=True):
    size: Bytes


class _Api:
    def __init__(self, volumes: Volumes) -> None:
        self._volumes = volumes

    def _place(self, params: FolderParams) -> tuple[AbstractVolume, VFolderId]:
        return self._volumes.get(params.volume), VFolderId.parse(params.vfid)


class VolumeApi(_Api):
    """Volumes and quota scopes."""

    def __init__(self, volumes: Volumes, quota: QuotaBook, *, node_id: str) -> None:
        super().__init__(volumes)
        self._quota = quota
        self._node_id = node_id

    @route("GET", "/")
    async def info(self, call: Call) -> dict[str, str]:
        """Which API this is."""
        release = version("backendai")
        return {"status": "ok", "type": "manager-facing", "storage-proxy": release, "node-id": self._node_id}

    @route("GET", "/status")
    @route("GET", "/health")
    async def status(self, call: Call) -> dict[str, str]:
        """That it serves."""
        return {"status": "ok"}

    @route("GET", "/volumes")
    async def volumes(self, call: Call) -> dict[str, Any]:
        """Every volume, with what it can do."""
        return {
            "volumes": [
                {
                    "name": volume.name,
                    "backend": volume.backend,
                    "path": str(volume.path),
                    "fsprefix": ".",
                    "capabilities": sorted(volume.capabilities),
                }
                for volume in self._volumes
            ]
        }

    @route("GET", "/volume/hwinfo", query=VolumeParams)
    async def hwinfo(self, call: Call[Any, VolumeParams]) -> dict[str, Any]:
        """Whether a volume works."""
        problem_ = await self._volumes.get(call.query.volume).check()
        return {"status": "unavailable" if problem_ else "healthy", "status_info": problem_, "metadata": {}}

    @route("GET", "/volume/performance-metric", query=VolumeParams)
    async def metric(self, call: Call[Any, VolumeParams]) -> dict[str, Any]:
        """What a volume has read and written."""
        volume = self._volumes.get(call.query.volume)
        if VolumeCapability.METRIC not in volume.capabilities:
            raise NotSupported(f"The volume {volume.name} measures nothing.")
        found = await volume.metric()
        return {"metric": {name: getattr(found, name) for name in found.__slots__}}

    @route("GET", "/volume/mounts", query=SomeVolumeParams)
    async def mounts(self, call: Call[Any, SomeVolumeParams]) -> dict[str, Any]:
        """What the volumes lie on, or one of them."""
        name = call.query.volume
        wanted = self._volumes if name is None else [self._volumes.get(name)]
        found = [(volume, await volume.mount()) for volume in wanted]
        return {
            "mounts": [
                {
                    "volume": volume.name,
                    "path": str(volume.path),
                    "mount_point": mount.mount_point,
                    "source": mount.source,
                    "fstype": mount.fstype,
                    "options": list(mount.options),
                }
                for volume, mount in found
                if mount is not None
            ]
        }

    @route("GET", "/folder/fs-usage", query=VolumeParams)
    async def fs_usage(self, call: Call[Any, VolumeParams]) -> dict[str, int]:
        """How large and how full a volume is."""
        usage = await self._volumes.get(call.query.volume).usage()
        return {"capacity_bytes": usage.capacity_bytes, "used_bytes": usage.used_bytes}

    @route("POST", "/quota-scope", body=ScopeBody)
    async def create_scope(self, call: Call[ScopeBody]) -> None:
        """Make a quota scope."""
        body = call.body
        volume, scope = self._volumes.get(body.volume), QuotaScopeId.parse(body.qsid)
        await volume.create_scope(scope)
        if body.options is not None:
            await volume.set_scope_limit(scope, body.options.limit_bytes)

    @route("GET", "/quota-scope", query=ScopeParams)
    async def describe_scope(self, call: Call[Any, ScopeParams]) -> dict[str, Any]:
        """What a quota scope uses, and may use."""
        volume, scope = self._volumes.get(call.query.volume), QuotaScopeId.parse(call.query.qsid)
        state = await self._quota.describe(volume, scope)
        return {
            "used_bytes": state.used,
            "file_count": state.files,
            "limit_bytes": -1 if state.limit is None else state.limit,
            "enforcement": state.enforcement,
        }

    @route("PATCH", "/quota-scope", body=ScopeBody)
    async def limit_scope(self, call: Call[ScopeBody]) -> None:
        """Set the limit of a quota scope."""
        body = call.body
        if body.options is None:
            raise InvalidInput("There are no options.", data={"options": "required"})
        await self._volumes.get(body.volume).set_scope_limit(QuotaScopeId.parse(body.qsid), body.options.limit_bytes)

    @route("DELETE", "/quota-scope/quota", query=ScopeParams)
    async def unlimit_scope(self, call: Call[Any, ScopeParams]) -> None:
        """Take the limit of a quota scope away."""
        await self._volumes.get(call.query.volume).set_scope_limit(QuotaScopeId.parse(call.query.qsid), None)


class FolderApi(_Api):
    """Folders and tasks."""

    def __init__(self, volumes: Volumes, folders: Folders, tasks: Tasks) -> None:
        super().__init__(volumes)
        self._folders = folders
        self._tasks = tasks

    @route("POST", "/folder/create", body=CreateBody)
    async def create(self, call: Call[CreateBody]) -> None:
        """Make a folder; one that is there is left as it is."""
        volume, folder = self._place(call.body)
        await volume.create_folder(folder, mode=call.body.mode)

    @route("POST", "/folder/delete", body=FolderParams)
    async def delete(self, call: Call[FolderParams]) -> None:
        """Make a folder vanish, and end a clone into it."""
        await self._folders.delete(*self._place(call.body))

    @route("POST", "/folder/clone", body=CloneBody, status=202)
    async def clone(self, call: Call[CloneBody]) -> dict[str, str]:
        """Copy a folder in the background."""
        body = call.body
        task = self._folders.clone(
            self._volumes.get(body.src_volume),
            VFolderId.parse(body.src_vfid),
            self._volumes.get(body.dst_volume),
            VFolderId.parse(body.dst_vfid),
        )
        return {"bgtask_id": str(task.id)}

    @route("GET", "/task", query=TaskParams)
    async def task(self, call: Call[Any, TaskParams]) -> dict[str, Any]:
        """How far a task is."""
        task = self._tasks.get(TaskId(call.query.task_id))
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
        """Cancel a task."""
        task = self._tasks.get(TaskId(call.query.task_id))
        if task.status == TaskStatus.RUNNING:
            self._tasks.cancel(task.key)

    @route("GET", "/folder/mount", query=MountParams)
    async def mount(self, call: Call[Any, MountParams]) -> dict[str, str]:
        """Where a folder is on every host."""
        volume, folder = self._place(call.query)
        return {"path": str(await volume.mount_path(folder, FolderPath.parse(call.query.subpath)))}

    @route("GET", "/folder/usage", query=FolderParams)
    async def usage(self, call: Call[Any, FolderParams]) -> dict[str, int]:
        """What a folder holds."""
        volume, folder = self._place(call.query)
        usage = await volume.folder_usage(folder)
        return {"file_count": usage.file_count, "used_bytes": usage.used_bytes}

    @route("GET", "/folder/used-bytes", query=FolderParams)
    async def used_bytes(self, call: Call[Any, FolderParams]) -> dict[str, int]:
        """What a folder takes on the disk."""
        volume, folder = self._place(call.query)
        return {"used_bytes": (await volume.folder_usage(folder)).used_bytes}


class FileApi(_Api):
    """Files in folders, and tokens for transfers."""

    def __init__(
        self,
        volumes: Volumes,
        folders: Folders,
        uploads: Uploads,
        tasks: Tasks,
        tokens: Tokens,
        *,
        page_size: int,
        client_url: str,
    ) -> None:
        super().__init__(volumes)
        self._folders = folders
        self._uploads = uploads
        self._tasks = tasks
        self._tokens = tokens
        self._page_size = page_size
        self.client_url = client_url

    @route("POST", "/folder/file/list", body=ListBody)
    async def list_files(self, call: Call[ListBody]) -> dict[str, Any]:
        """A page of a directory."""
        volume, folder = self._place(call.body)
        page = await volume.list_directory(
            folder,
            FolderPath.parse(call.body.relpath),
            limit=call.body.limit or self._page_size,
            cursor=call.body.cursor,
        )
        return {"items": [_item(entry) for entry in page.entries], "cursor": page.cursor}

    @route("POST", "/folder/file/mkdir", body=MkdirBody)
    async def mkdir(self, call: Call[MkdirBody]) -> Reply:
        """Make directories."""
        body = call.body
        volume, folder = self._place(body)
        if isinstance(body.relpath, str):
            await volume.make_directory(
                folder, FolderPath.parse(body.relpath), parents=body.parents, exist_ok=body.exist_ok
            )
            return Reply({"results": {"success": _results([(body.relpath, "made")]), "failed": []}})
        made, failed = await self._folders.make_directories(
            volume, folder, body.relpath, parents=body.parents, exist_ok=body.exist_ok
        )
        results = {"success": _results(made), "failed": _results(failed)}
        return Reply({"results": results}, 200 if not failed else 207 if made else 422)

    @route("POST", "/folder/file/rename", body=RenameBody)
    async def rename(self, call: Call[RenameBody]) -> None:
        """Give a file or directory another name."""
        volume, folder = self._place(call.body)
        await volume.rename(folder, FolderPath.parse(call.body.relpath), call.body.new_name)

    @route("POST", "/folder/file/move", body=MoveBody)
    async def move(self, call: Call[MoveBody]) -> None:
        """Move a file or directory inside its folder."""
        volume, folder = self._place(call.body)
        await volume.move(folder, FolderPath.parse(call.body.src_relpath), FolderPath.parse(call.body.dst_relpath))

    @route("POST", "/folder/file/delete", body=DeleteBody)
    async def delete(self, call: Call[DeleteBody]) -> None:
        """Delete files, or with 'recursive' directories."""
        volume, folder, paths = self._doomed(call.body)
        await self._folders.delete_files(volume, folder, paths, recursive=call.body.recursive)

    @route("POST", "/folder/file/delete-async", body=DeleteBody, status=202)
    async def delete_async(self, call: Call[DeleteBody]) -> dict[str, str]:
        """The same as a task; also without it directories are removed in the background."""
        volume, folder, paths = self._doomed(call.body)
        recursive = call.body.recursive
        key = f"delete {call.request_id}"
        task = self._tasks.start(
            "delete", key, lambda _: self._folders.delete_files(volume, folder, paths, recursive=recursive)
        )
        return {"bgtask_id": str(task.id)}

    def _doomed(self, body: DeleteBody) -> tuple[AbstractVolume, VFolderId, list[FolderPath]]:
        return *self._place(body), [FolderPath.parse(text) for text in body.relpaths]

    @route("POST", "/folder/file/fetch", body=FileBody, kind="json")
    async def fetch(self, call: Call[FileBody]) -> web.StreamResponse:
        """The bytes of a file."""
        volume, folder = self._place(call.body)
        path = FolderPath.parse(call.body.relpath)
        return await send_file(call.request, await volume.open_file(folder, path), str(path).rpartition("/")[2])

    @route("POST", "/folder/file/download", body=DownloadBody)
    async def download(self, call: Call[DownloadBody]) -> dict[str, str]:
        """A token to download a file, or a directory as an archive."""
        body = call.body
        volume, folder = self._place(body)
        path = FolderPath.parse(body.relpath)
        entry = await volume.stat(folder, path)
        if entry.kind == FileKind.DIRECTORY and not body.archive:
            raise WrongKindOfFile("That is a directory: ask for it with 'archive'.")
        claims = DownloadClaims(volume=volume.name, vfid=str(folder), relpath=str(path), archive=body.archive)
        return self._ticket(claims, "download")

    @route("POST", "/folder/file/archive-download-token", body=ArchiveBody)
    async def download_archive(self, call: Call[ArchiveBody]) -> dict[str, str]:
        """A token to download several files and directories as an archive."""
        body = call.body
        volume, folder = self._place(body)
        for text in body.files:
            await volume.stat(folder, FolderPath.parse(text))
        claims = ArchiveClaims(
            volume=volume.name, virtual_folder_id=str(folder), files=tuple(body.files), filename=body.filename
        )
        return self._ticket(claims, "download-archive")

    @route("POST", "/folder/file/upload", body=UploadBody)
    async def upload(self, call: Call[UploadBody]) -> dict[str, str]:
        """A token to upload a file; an empty one is made at once."""
        volume, folder = self._place(call.body)
        claims = await self._uploads.request(volume, folder, FolderPath.parse(call.body.relpath), call.body.size)
        return self._ticket(claims, "upload")

    def _ticket(self, claims: Claims, what: str) -> dict[str, str]:
        return {"token": self._tokens.issue(claims), "url": f"{self.client_url}/{what}"}


def _results(pairs: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"item": item, "msg": message} for item, message in pairs]


def _item(entry: FileEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "type": entry.kind.value,
        "stat": {"mode": entry.mode, "size": entry.size, "created": entry.created, "modified": entry.modified},
        "symlink_target": entry.symlink_target,
    }
