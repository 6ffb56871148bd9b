"""Calls storage proxies about folders, files and quota scopes over HTTP."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from ai.backend.common.errors import FolderNotFound, NotFound, QuotaScopeNotFound, VolumeNotFound
from ai.backend.common.folders import FolderKey, parse_host
from ai.backend.common.volume_paths import QuotaScopeId
from ai.backend.infra.retry import Backoff
from ai.backend.manager.folders.gateway import Progress
from ai.backend.manager.folders.model import FileInfo, FolderUsage, ScopeUsage, Ticket
from ai.backend.manager.storage_proxy import StorageProxies, problem_of

_FIRST_POLL_S, _LAST_POLL_S = 0.05, 2.0


class StorageProxyFolders:
    """Implements :class:`ai.backend.manager.folders.gateway.FolderGateway`."""

    def __init__(self, proxies: StorageProxies) -> None:
        self._proxies = proxies

    async def _ask_volume(self, host: str, method: str, path: str, **parameters: Any) -> dict[str, Any]:
        proxy, volume = parse_host(host)
        return await self._proxies.ask(proxy, method, path, {"volume": volume, **parameters})

    async def _ask_folder(self, folder: FolderKey, method: str, path: str, **parameters: Any) -> dict[str, Any]:
        folder_fields = {"volume": folder.volume, "vfid": folder.vfid}
        return await self._proxies.ask(folder.proxy, method, path, {**folder_fields, **parameters})

    async def scope_usage(self, host: str, scope: QuotaScopeId) -> ScopeUsage:
        reply = await self._ask_volume(host, "GET", "/quota-scope", qsid=str(scope))
        limit = int(reply["limit_bytes"])
        return ScopeUsage(
            used_bytes=int(reply["used_bytes"]),
            limit_bytes=limit if limit >= 0 else None,
            enforcement=str(reply.get("enforcement") or "soft"),
            file_count=reply.get("file_count"),
        )

    async def set_scope_limit(self, host: str, scope: QuotaScopeId, limit_bytes: int | None) -> None:
        if limit_bytes is not None:
            options = {"limit_bytes": limit_bytes}
            await self._ask_volume(host, "POST", "/quota-scope", qsid=str(scope), options=options)
            return
        with contextlib.suppress(QuotaScopeNotFound):
            await self._ask_volume(host, "DELETE", "/quota-scope/quota", qsid=str(scope))

    async def create_folder(self, folder: FolderKey) -> None:
        await self._ask_folder(folder, "POST", "/folder/create")

    async def delete_folder(self, folder: FolderKey) -> None:
        await self._ask_folder(folder, "POST", "/folder/delete")

    async def clone_folder(self, source: FolderKey, target: FolderKey, progress: Progress | None = None) -> None:
        target_fields = {"dst_volume": target.volume, "dst_vfid": target.vfid}
        request = {"src_volume": source.volume, "src_vfid": source.vfid, **target_fields}
        poll_backoff, task_id = Backoff(_FIRST_POLL_S, _LAST_POLL_S, factor=1.5), None
        while True:
            if task_id is None:
                task_id = (await self._proxies.ask(target.proxy, "POST", "/folder/clone", request))["bgtask_id"]
            try:
                task = await self._proxies.ask(target.proxy, "GET", "/task", {"task_id": task_id})
            except (FolderNotFound, VolumeNotFound):
                raise
            except NotFound:  # the proxy was restarted and resumed the clone
                task_id = None
                continue
            if task["status"] == "done":
                return
            if task["status"] != "running":
                error = task.get("error") or {}
                raise problem_of(error, f"The clone was {task['status']}: {task.get('message') or 'no reason given'}.")
            if progress is not None:
                await progress(float(task.get("current") or 0), float(task.get("total") or 0))
            await poll_backoff.wait()

    async def mount_path(self, folder: FolderKey, subpath: str = "") -> str:
        reply = await self._ask_folder(folder, "GET", "/folder/mount", subpath=subpath or ".")
        return str(reply["path"])

    async def usage(self, folder: FolderKey) -> FolderUsage:
        reply = await self._ask_folder(folder, "GET", "/folder/usage")
        return FolderUsage(files=int(reply["file_count"]), bytes=int(reply["used_bytes"]))

    async def list_files(
        self, folder: FolderKey, path: str, *, limit: int = 1000, cursor: str | None = None
    ) -> tuple[Sequence[FileInfo], str | None]:
        reply = await self._ask_folder(folder, "POST", "/folder/file/list", relpath=path, limit=limit, cursor=cursor)
        return [_file_info(item) for item in reply["items"]], reply.get("cursor")

    async def make_directories(
        self, folder: FolderKey, paths: Sequence[str], *, parents: bool, exist_ok: bool
    ) -> Mapping[str, str | None]:
        reply = await self._ask_folder(
            folder, "POST", "/folder/file/mkdir", relpath=list(paths), parents=parents, exist_ok=exist_ok
        )
        results = reply["results"]
        problem_by_path: dict[str, str | None] = {str(result["item"]): None for result in results.get("success", ())}
        return problem_by_path | {
            str(result["item"]): str(result.get("msg") or "it cannot be made") for result in results.get("failed", ())
        }

    async def rename_file(self, folder: FolderKey, path: str, new_name: str) -> None:
        await self._ask_folder(folder, "POST", "/folder/file/rename", relpath=path, new_name=new_name)

    async def move_file(self, folder: FolderKey, source: str, target: str) -> None:
        await self._ask_folder(folder, "POST", "/folder/file/move", src_relpath=source, dst_relpath=target)

    async def delete_files(self, folder: FolderKey, paths: Sequence[str], *, recursive: bool) -> None:
        await self._ask_folder(folder, "POST", "/folder/file/delete", relpaths=list(paths), recursive=recursive)

    async def read_file(self, folder: FolderKey, path: str, *, max_bytes: int) -> bytes:
        file_fields = {"volume": folder.volume, "vfid": folder.vfid, "relpath": path}
        return await self._proxies.fetch(folder.proxy, "/folder/file/fetch", file_fields, max_bytes=max_bytes)

    async def upload_ticket(self, folder: FolderKey, path: str, size: int) -> Ticket:
        return await self._ticket(folder, "/folder/file/upload", relpath=path, size=size)

    async def download_ticket(self, folder: FolderKey, path: str, *, archive: bool, requester: str) -> Ticket:
        return await self._ticket(folder, "/folder/file/download", relpath=path, archive=archive, requester=requester)

    async def upload_tickets(self, folder: FolderKey, sizes: Sequence[tuple[str, int]]) -> Sequence[Ticket]:
        files = [{"relpath": path, "size": size} for path, size in sizes]
        return await self._tickets(folder, "/folder/file/uploads", files=files)

    async def download_tickets(self, folder: FolderKey, paths: Sequence[str], *, requester: str) -> Sequence[Ticket]:
        return await self._tickets(folder, "/folder/file/downloads", relpaths=list(paths), requester=requester)

    async def _ticket(self, folder: FolderKey, path: str, **parameters: Any) -> Ticket:
        reply = await self._ask_folder(folder, "POST", path, **parameters)
        return Ticket(url=await self._reachable_url(folder, str(reply["url"])), token=str(reply["token"]))

    async def _tickets(self, folder: FolderKey, path: str, **parameters: Any) -> list[Ticket]:
        reply = await self._ask_folder(folder, "POST", path, **parameters)
        url = await self._reachable_url(folder, str(reply["url"]))
        return [Ticket(url=url, token=str(token)) for token in reply["tokens"]]

    async def _reachable_url(self, folder: FolderKey, url: str) -> str:
        """Returns the URL of a transfer at the address at which the storage proxy is announced to clients."""
        base_url = (await self._proxies.proxy(folder.proxy)).client_api
        return f"{base_url}/{url.rpartition('/')[2]}" if base_url else url


def _file_info(item: Mapping[str, Any]) -> FileInfo:
    attributes = item["stat"]
    return FileInfo(
        name=str(item["name"]),
        is_directory=item["type"] == "DIRECTORY",
        size=int(attributes["size"]),
        mode=stat.filemode(int(attributes["mode"])),
        created=float(attributes["created"]),
        modified=float(attributes["modified"]),
        accessed=float(attributes.get("accessed") or attributes["modified"]),
    )
