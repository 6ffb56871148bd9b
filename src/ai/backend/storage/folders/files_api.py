"""Manager-facing routes of files, and of tokens for transfers."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from aiohttp import web

from ai.backend.common.errors import WrongKindOfFile
from ai.backend.common.volume_paths import FolderPath, VFolderId
from ai.backend.infra.http.routes import Call, Reply, route
from ai.backend.plugin.volume import AbstractVolume, FileEntry, FileKind, Progress
from ai.backend.storage.folders.service import Folders
from ai.backend.storage.transfers.file_response import send_file
from ai.backend.storage.transfers.tokens import ArchiveClaims, Claims, DownloadClaims, Tokens
from ai.backend.storage.transfers.uploads import Uploads
from ai.backend.storage.volumes.schemas import Bytes, FolderParams


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
        return {"items": [_item(entry) for entry in page.entries], "cursor": page.cursor}

    @route("POST", "/folder/file/mkdir", body=MkdirBody)
    async def mkdir(self, call: Call[MkdirBody]) -> Reply:
        """Creates directories."""
        body = call.body
        volume, folder = self.folders.volumes.locate(body.volume, body.vfid)
        if isinstance(body.relpath, str):
            path = FolderPath.parse(body.relpath)
            await volume.make_directory(folder, path, parents=body.parents, exist_ok=body.exist_ok)
            return Reply({"results": {"success": _results([(body.relpath, "made")]), "failed": []}})
        created, failed = await self.folders.make_directories(
            volume, folder, body.relpath, parents=body.parents, exist_ok=body.exist_ok
        )
        results = {"success": _results(created), "failed": _results(failed)}
        return Reply({"results": results}, 200 if not failed else 207 if created else 422)

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
        volume, folder, paths = self._targets(call.body)
        await self.folders.delete_files(volume, folder, paths, recursive=call.body.recursive)

    @route("POST", "/folder/file/delete-async", body=DeleteBody, status=202)
    async def delete_async(self, call: Call[DeleteBody]) -> dict[str, str]:
        """Deletes files as a task; directories are always removed in the background."""
        volume, folder, paths = self._targets(call.body)

        def delete(_: Progress) -> Awaitable[None]:
            return self.folders.delete_files(volume, folder, paths, recursive=call.body.recursive)

        return {"bgtask_id": str(self.folders.tasks.start("delete", f"delete {call.request_id}", delete).id)}

    def _targets(self, body: DeleteBody) -> tuple[AbstractVolume, VFolderId, list[FolderPath]]:
        return *self.folders.volumes.locate(body.volume, body.vfid), [FolderPath.parse(text) for text in body.relpaths]

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
        path = FolderPath.parse(body.relpath)
        entry = await volume.stat(folder, path)
        if entry.kind == FileKind.DIRECTORY and not body.archive:
            raise WrongKindOfFile("That is a directory: ask for it with 'archive'.")
        claims = DownloadClaims(volume=volume.name, vfid=str(folder), relpath=str(path), archive=body.archive)
        return self._ticket(claims, "download")

    @route("POST", "/folder/file/archive-download-token", body=ArchiveBody)
    async def download_archive(self, call: Call[ArchiveBody]) -> dict[str, str]:
        """Issues a token to download several files and directories as an archive."""
        body = call.body
        volume, folder = self.folders.volumes.locate(body.volume, body.vfid)
        for text in body.files:
            await volume.stat(folder, FolderPath.parse(text))
        claims = ArchiveClaims(
            volume=volume.name, virtual_folder_id=str(folder), files=tuple(body.files), filename=body.filename
        )
        return self._ticket(claims, "download-archive")

    @route("POST", "/folder/file/upload", body=UploadBody)
    async def upload(self, call: Call[UploadBody]) -> dict[str, str]:
        """Issues a token to upload a file; an empty file is created at once."""
        volume, folder = self.folders.volumes.locate(call.body.volume, call.body.vfid)
        claims = await self.uploads.request(volume, folder, FolderPath.parse(call.body.relpath), call.body.size)
        return self._ticket(claims, "upload")

    def _ticket(self, claims: Claims, route: str) -> dict[str, str]:
        return {"token": self.tokens.issue(claims), "url": f"{self.tokens.client_url}/{route}"}


def _results(pairs: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"item": item, "msg": message} for item, message in pairs]


def _item(entry: FileEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "type": entry.kind.value,
        "stat": {"mode": entry.mode, "size": entry.size, "created": entry.created, "modified": entry.modified},
        "symlink_target": entry.symlink_target,
    }
