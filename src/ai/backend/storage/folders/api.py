"""Manager-facing routes of folders, files and tasks, and of tokens for transfers."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any
from uuid import UUID

import msgspec
from aiohttp import web

from ai.backend.common.errors import WrongKindOfFile
from ai.backend.common.ids import TaskId
from ai.backend.common.volume_paths import FolderPath, VFolderId
from ai.backend.infra.http.errors import problem
from ai.backend.infra.http.routes import Call, Reply, Schema, route
from ai.backend.plugin.volume import AbstractVolume, FileEntry, FileKind, Progress
from ai.backend.storage.folders.service import Folders
from ai.backend.storage.tasks import TaskStatus
from ai.backend.storage.transfers.file_response import send_file
from ai.backend.storage.transfers.tokens import ArchiveClaims, Claims, DownloadClaims, Tokens
from ai.backend.storage.transfers.uploads import Uploads
from ai.backend.storage.volumes.schemas import Bytes, FolderParams


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
        skipped_text = f" {task.progress.skipped} special files were left out." if task.progress.skipped else ""
        return {
            "task_id": str(task.id),
            "kind": task.kind,
            "status": task.status.value,
            "current": task.progress.current,
            "total": max(task.progress.total, task.progress.current),
            "files": task.progress.files,
            "message": task.error.message if task.error else f"{task.progress.files} files.{skipped_text}",
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
    requester: str = ""


class ArchiveBody(FolderParams, frozen=True, kw_only=True):
    files: list[str]
    filename: str | None = None
    requester: str = ""


class UploadBody(FileBody, frozen=True, kw_only=True):
    size: Bytes


class NewFile(msgspec.Struct, frozen=True, kw_only=True):
    relpath: str
    size: Bytes


class UploadsBody(FolderParams, frozen=True, kw_only=True):
    files: Annotated[list[NewFile], msgspec.Meta(min_length=1, max_length=1_000)]


class DownloadsBody(FolderParams, frozen=True, kw_only=True):
    relpaths: Annotated[list[str], msgspec.Meta(min_length=1, max_length=1_000)]
    requester: str = ""


@dataclass(slots=True)
class FileApi:
    """Routes about files in folders and tokens for transfers; ``page_size`` is the default number of entries."""

    folders: Folders
    uploads: Uploads
    tokens: Tokens
    page_size: int

    @route("POST", "/folder/file/list", body=ListBody)
    async def list_files(self, call: Call[ListBody]) -> dict[str, Any]:
        """Returns a page of a directory."""
        volume, folder = self.folders.volumes.locate(call.body.volume, call.body.vfid)
        path, limit = FolderPath.parse(call.body.relpath), call.body.limit or self.page_size
        page = await volume.list_directory(folder, path, limit=limit, cursor=call.body.cursor)
        return {"items": [_entry_fields(entry) for entry in page.entries], "cursor": page.cursor}

    @route("POST", "/folder/file/mkdir", body=MkdirBody)
    async def mkdir(self, call: Call[MkdirBody]) -> Reply:
        """Creates directories."""
        body = call.body
        volume, folder = self.folders.volumes.locate(body.volume, body.vfid)
        if isinstance(body.relpath, str):
            path = FolderPath.parse(body.relpath)
            await volume.make_directory(folder, path, parents=body.parents, exist_ok=body.exist_ok)
            return Reply({"results": {"success": _result_items([(body.relpath, "made")]), "failed": []}})
        created_paths, failed_paths = await self.folders.make_directories(
            volume, folder, body.relpath, parents=body.parents, exist_ok=body.exist_ok
        )
        result_lists = {"success": _result_items(created_paths), "failed": _result_items(failed_paths)}
        return Reply({"results": result_lists}, 200 if not failed_paths else 207 if created_paths else 422)

    @route("POST", "/folder/file/rename", body=RenameBody)
    async def rename(self, call: Call[RenameBody]) -> None:
        """Renames a file or directory."""
        volume, folder = self.folders.volumes.locate(call.body.volume, call.body.vfid)
        await volume.rename(folder, FolderPath.parse(call.body.relpath), call.body.new_name)

    @route("POST", "/folder/file/move", body=MoveBody)
    async def move(self, call: Call[MoveBody]) -> None:
        """Moves a file or directory inside its folder."""
        volume, folder = self.folders.volumes.locate(call.body.volume, call.body.vfid)
        await volume.move(folder, FolderPath.parse(call.body.src_relpath), FolderPath.parse(call.body.dst_relpath))

    @route("POST", "/folder/file/delete", body=DeleteBody)
    async def delete(self, call: Call[DeleteBody]) -> None:
        """Deletes files, or with 'recursive' directories."""
        volume, folder, paths = self._delete_targets(call.body)
        await self.folders.delete_files(volume, folder, paths, recursive=call.body.recursive)

    @route("POST", "/folder/file/delete-async", body=DeleteBody, status=202)
    async def delete_async(self, call: Call[DeleteBody]) -> dict[str, str]:
        """Deletes files as a task; directories are always removed in the background."""
        volume, folder, paths = self._delete_targets(call.body)

        def delete(_: Progress) -> Awaitable[None]:
            return self.folders.delete_files(volume, folder, paths, recursive=call.body.recursive)

        return {"bgtask_id": str(self.folders.tasks.start("delete", f"delete {call.request_id}", delete).id)}

    def _delete_targets(self, body: DeleteBody) -> tuple[AbstractVolume, VFolderId, list[FolderPath]]:
        return *self.folders.volumes.locate(body.volume, body.vfid), [
            FolderPath.parse(path_text) for path_text in body.relpaths
        ]

    @route("POST", "/folder/file/fetch", body=FileBody, kind="json")
    async def fetch(self, call: Call[FileBody]) -> web.StreamResponse:
        """Returns the bytes of a file."""
        volume, folder = self.folders.volumes.locate(call.body.volume, call.body.vfid)
        path = FolderPath.parse(call.body.relpath)
        return await send_file(call.request, await volume.open_file(folder, path), str(path).rpartition("/")[2])

    @route("POST", "/folder/file/download", body=DownloadBody)
    async def download(self, call: Call[DownloadBody]) -> dict[str, str]:
        """Issues a token to download a file, or a directory as an archive."""
        body = call.body
        volume, folder = self.folders.volumes.locate(body.volume, body.vfid)
        claims = await _download_claims(volume, folder, body.relpath, body.requester, is_archive=body.archive)
        return self._token_answer(claims, "download")

    @route("POST", "/folder/file/downloads", body=DownloadsBody)
    async def download_files(self, call: Call[DownloadsBody]) -> dict[str, Any]:
        """Issues a token for each of several files to download, in their order."""
        body = call.body
        volume, folder = self.folders.volumes.locate(body.volume, body.vfid)
        claims = [await _download_claims(volume, folder, path_text, body.requester) for path_text in body.relpaths]
        return self._tokens_answer(claims, "download")

    @route("POST", "/folder/file/archive-download-token", body=ArchiveBody)
    async def download_archive(self, call: Call[ArchiveBody]) -> dict[str, str]:
        """Issues a token to download several files and directories as an archive."""
        body = call.body
        volume, folder = self.folders.volumes.locate(body.volume, body.vfid)
        for path_text in body.files:
            await volume.stat(folder, FolderPath.parse(path_text))
        claims = ArchiveClaims(
            volume=volume.name,
            virtual_folder_id=str(folder),
            files=tuple(body.files),
            filename=body.filename,
            requester=body.requester,
        )
        return self._token_answer(claims, "download-archive")

    @route("POST", "/folder/file/upload", body=UploadBody)
    async def upload(self, call: Call[UploadBody]) -> dict[str, str]:
        """Issues a token to upload a file; an empty file is created at once."""
        volume, folder = self.folders.volumes.locate(call.body.volume, call.body.vfid)
        claims = await self.uploads.request(volume, folder, FolderPath.parse(call.body.relpath), call.body.size)
        return self._token_answer(claims, "upload")

    @route("POST", "/folder/file/uploads", body=UploadsBody)
    async def upload_files(self, call: Call[UploadsBody]) -> dict[str, Any]:
        """Issues a token for each of several files to upload, in their order; empty files are created at once."""
        volume, folder = self.folders.volumes.locate(call.body.volume, call.body.vfid)
        sizes = [(FolderPath.parse(file.relpath), file.size) for file in call.body.files]
        return self._tokens_answer(await self.uploads.request_all(volume, folder, sizes), "upload")

    def _tokens_answer(self, claims: Sequence[Claims], route: str) -> dict[str, Any]:
        tokens = [self.tokens.issue(claims_of_file) for claims_of_file in claims]
        return {"tokens": tokens, "url": f"{self.tokens.client_url}/{route}"}

    def _token_answer(self, claims: Claims, route: str) -> dict[str, str]:
        return {"token": self.tokens.issue(claims), "url": f"{self.tokens.client_url}/{route}"}


async def _download_claims(
    volume: AbstractVolume, folder: VFolderId, path_text: str, requester: str, *, is_archive: bool = False
) -> DownloadClaims:
    path = FolderPath.parse(path_text)
    entry = await volume.stat(folder, path)
    if entry.kind == FileKind.DIRECTORY and not is_archive:
        raise WrongKindOfFile("That is a directory: ask for it with 'archive'.")
    return DownloadClaims(
        volume=volume.name, vfid=str(folder), relpath=str(path), archive=is_archive, requester=requester
    )


def _result_items(items_with_messages: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"item": item_path, "msg": message} for item_path, message in items_with_messages]


def _entry_fields(entry: FileEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "type": entry.kind.value,
        "stat": {name: getattr(entry, name) for name in ("mode", "size", "created", "modified", "accessed")},
        "symlink_target": entry.symlink_target,
    }
