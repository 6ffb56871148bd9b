"""Manages virtual folders (spec 03-08, 03-12; client wire contract 2.5).

folder = api.VFolder("mydata")
await folder.upload(["bigdata.csv"])
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Unpack
from uuid import UUID

from ai.backend.client.exceptions import BackendAPIError
from ai.backend.client.func.admin import PaginatedResult, Paging
from ai.backend.client.func.base import Area
from ai.backend.client.portal import Blocking
from ai.backend.client.transfer import (
    CHUNK,
    PARALLEL,
    Progress,
    Ticket,
    TicketBatches,
    UploadRecord,
    collect,
    path_inside,
    run_in_parallel,
    state_directory,
)
from ai.backend.client.transport import Transport
from ai.backend.client.wire import encode_segment

LIST_FIELDS = (
    "id", "name", "status", "host", "usage_mode", "permission", "ownership_type", "user", "group", "creator",
    "cloneable", "created_at", "last_used",
)  # fmt: skip
_PAGE_SIZE = 1_000


class AsyncVFolder(Area):
    """Manages one virtual folder, given by its name or id. Constructing it sends no request."""

    def __init__(self, transport: Transport, name: str | UUID) -> None:
        super().__init__(transport)
        self.name = str(name)

    def _path(self, operation: str = "") -> str:
        return f"/folders/{encode_segment(self.name)}{operation}"

    # ---- the folder ----

    async def info(self) -> dict[str, Any]:
        """Returns the folder's properties and usage."""
        return await self._get(self._path())

    async def rename(self, new_name: str) -> None:
        await self._change("POST", self._path("/rename"), {"new_name": new_name})
        self.name = new_name

    async def update_options(
        self, *, cloneable: bool | None = None, permission: str | None = None, usage_mode: str | None = None
    ) -> None:
        """Changes the options of the folder that are not None."""
        options = {"cloneable": cloneable, "permission": permission, "usage_mode": usage_mode}
        body = {name: value for name, value in options.items() if value is not None}
        await self._change("POST", self._path("/update-options"), body)

    async def delete(self) -> None:
        """Moves the folder into the trash; refused while a session mounts it."""
        await self._change("DELETE", self._path())

    async def get_id(self) -> UUID:
        """Returns the id of the folder, also if it is in the trash."""
        return UUID(str((await self._get("/folders/_/id", name=self.name))["id"]))

    async def restore(self) -> None:
        """Takes the folder out of the trash; of several with its name, the one that was deleted last."""
        await self._change("POST", "/folders/restore-from-trash-bin", {"id": self.name})

    async def purge(self) -> None:
        """Removes the folder from the trash for good, with its files; of several, the one that was deleted last."""
        await self._change("POST", "/folders/purge", {"id": self.name})

    async def clone(
        self,
        target_name: str,
        target_host: str | None = None,
        *,
        permission: str = "rw",
        usage_mode: str = "general",
        cloneable: bool = False,
    ) -> dict[str, Any]:
        """Makes a folder with the same files; ``bgtask_id`` names the background task that fills it."""
        options = {"permission": permission, "usage_mode": usage_mode, "cloneable": cloneable}
        body = {"target_name": target_name, "target_host": target_host, **options}
        return await self._change("POST", self._path("/clone"), body)

    # ---- others ----

    async def invite(self, perm: str, emails: Sequence[str]) -> list[str]:
        """Offers the folder to other users; returns the addresses that were not invited before."""
        reply = await self._change("POST", self._path("/invite"), {"perm": perm, "emails": list(emails)})
        return list(reply.get("invited_ids") or ())

    async def share(self, perm: str, emails: Sequence[str]) -> list[str]:
        """Sets what single members of a group may do with the group's folder."""
        body = {"permission": perm, "emails": list(emails)}
        return list((await self._change("POST", self._path("/share"), body)).get("shared_emails") or ())

    async def unshare(self, emails: Sequence[str]) -> list[str]:
        """Removes the permission that :meth:`share` set for single members."""
        reply = await self._change("DELETE", self._path("/unshare"), {"emails": list(emails)})
        return list(reply.get("unshared_emails") or ())

    async def leave(self, shared_user_uuid: str | None = None) -> None:
        """Ends the caller's share of the folder. The owner may end the share of another user instead."""
        await self._change("POST", self._path("/leave"), {"shared_user_uuid": shared_user_uuid})

    # ---- files ----

    async def list_files(self, path: str = ".") -> list[dict[str, Any]]:
        """Returns the entries of a directory: ``name``, ``type``, ``size``, ``mode``, ``created``, ``modified``."""
        return [entry async for entry in self.iterate_files(path)]

    async def iterate_files(self, path: str = ".") -> AsyncIterator[dict[str, Any]]:
        """Yields the entries of :meth:`list_files` page by page, however large the directory is."""
        cursor: str | None = None
        while True:
            reply = await self._get(self._path("/files"), path=path, limit=_PAGE_SIZE, cursor=cursor)
            for entry in reply.get("items") or json.loads(reply.get("files") or "[]"):
                yield dict(entry)
            cursor = reply.get("cursor")
            if cursor is None:
                return

    async def mkdir(
        self, path: str | Sequence[str], *, parents: bool = False, exist_ok: bool = False
    ) -> dict[str, Any]:
        """Makes directories; returns ``success`` and ``failed``, each a list of ``item`` and ``msg``.

        Raises BackendAPIError if none of them could be made.
        """
        body = {"path": path if isinstance(path, str) else list(path), "parents": parents, "exist_ok": exist_ok}
        return dict((await self._change("POST", self._path("/mkdir"), body)).get("results") or {})

    async def rename_file(self, target_path: str, new_name: str) -> None:
        body = {"target_path": target_path, "new_name": new_name}
        await self._change("POST", self._path("/rename-file"), body)

    async def move_file(self, src: str, dst: str) -> None:
        """Moves a file, into ``dst`` if that is a directory."""
        await self._change("POST", self._path("/move-file"), {"src": src, "dst": dst})

    async def delete_files(self, files: Sequence[str], *, recursive: bool = False) -> None:
        await self._change("DELETE", self._path("/delete-files"), {"files": list(files), "recursive": recursive})

    # ---- transfers ----

    async def request_upload(self, path: str, size: int) -> Ticket:
        """Returns the ticket of a tus upload of ``size`` bytes; an empty file is created at once."""
        reply = await self._change("POST", self._path("/request-upload"), {"path": path, "size": size})
        return self._make_ticket(reply)

    async def request_uploads(self, sizes: Sequence[tuple[str, int]]) -> list[Ticket]:
        """Returns the tickets of at most 1,000 uploads in the order of ``sizes``, pairs of path and bytes."""
        files = [{"path": path, "size": size} for path, size in sizes]
        reply = await self._change("POST", self._path("/request-uploads"), {"files": files})
        return [self._make_ticket(ticket) for ticket in reply["tickets"]]

    async def request_downloads(self, paths: Sequence[str]) -> list[Ticket]:
        """Returns the tickets to download at most 1,000 files, in their order."""
        reply = await self._change("POST", self._path("/request-downloads"), {"files": list(paths)})
        return [self._make_ticket(ticket) for ticket in reply["tickets"]]

    async def request_download(self, path: str, *, archive: bool = False) -> Ticket:
        """Returns the ticket to download a file, or with ``archive`` a directory as a zip."""
        body = {"path": path, "archive": archive}
        return self._make_ticket(await self._change("POST", self._path("/request-download"), body))

    def _make_ticket(self, reply: Mapping[str, Any]) -> Ticket:
        url = str(reply["url"])
        for announced_address, reachable_address in self._transport.config.storage_proxy_address_map.items():
            if (url + "/").startswith(announced_address.rstrip("/") + "/"):
                url = reachable_address.rstrip("/") + url.removeprefix(announced_address.rstrip("/"))
                break
        return Ticket(url, str(reply["token"]))

    async def upload(
        self,
        files: Sequence[str | os.PathLike[str]],
        *,
        basedir: str | os.PathLike[str] | None = None,
        dst_dir: str | None = None,
        recursive: bool = False,
        chunk_size: int = CHUNK,
        parallel: int = PARALLEL,
        resume: bool = True,
        progress: Progress | None = None,
    ) -> list[str]:
        """Puts files into the folder at their paths relative to ``basedir`` (the working directory); returns the paths.

        The one file that is ``basedir`` itself becomes the file ``dst_dir``.

        A transfer that breaks goes on where it broke; with ``resume`` also in the next run of the program. Files that
        are there are replaced.

        Raises:
            BackendClientError: a file is missing, is a directory without ``recursive``, or is outside of ``basedir``.
            BackendAPIError: the server refuses.
        """

        import asyncio

        path_pairs, directories = await asyncio.to_thread(collect, files, basedir, recursive)
        prefix = PurePosixPath(dst_dir or "")
        top_directory = prefix.parent if [name for name, _ in path_pairs] == ["."] else prefix
        new_directories = sorted({str(prefix / name) for name in directories} | {str(top_directory)})
        new_directories = [path for path in new_directories if path != "."]
        for batch_start in range(0, len(new_directories), _PAGE_SIZE):
            await self.mkdir(new_directories[batch_start : batch_start + _PAGE_SIZE], parents=True, exist_ok=True)
        folder_id = str((await self.info())["id"]) if resume else ""
        transfers = self._transfers()
        local_paths = {str(prefix / remote_path): local_path for remote_path, local_path in path_pairs}
        sizes = await asyncio.to_thread(self._new_uploads, local_paths, folder_id)
        tickets = TicketBatches(sizes, self.request_uploads)

        async def upload_file(path: str, local_path: Path) -> str:
            with local_path.open("rb") as file:
                status = os.fstat(file.fileno())

                async def request_ticket() -> Ticket:
                    ticket = await tickets.take(path) if sizes.get(path) == status.st_size else None
                    return ticket or await self.request_upload(path, status.st_size)

                await transfers.upload(
                    path,
                    file,
                    status.st_size,
                    request_ticket,
                    record=self._upload_record(folder_id, path, local_path, status) if resume else None,
                    chunk_size=chunk_size,
                    progress=progress,
                )
            return path

        return await run_in_parallel(
            (upload_file(path, local_path) for path, local_path in local_paths.items()), parallel
        )

    def _new_uploads(self, local_paths: Mapping[str, Path], folder_id: str) -> dict[str, int]:
        """Returns the paths and sizes of the files of which no unfinished upload is stored."""
        statuses = {path: local_path.stat() for path, local_path in local_paths.items()}
        return {
            path: status.st_size
            for path, status in statuses.items()
            if not folder_id or self._upload_record(folder_id, path, local_paths[path], status).read() is None
        }

    def _upload_record(self, folder_id: str, path: str, local: Path, status: os.stat_result) -> UploadRecord:
        """Returns the record that stores an unfinished upload of a local file to a path in the folder.

        An unchanged file to the same place has the same record.
        """
        upload_identity = {
            "endpoint": str(self._transport.config.endpoint),
            "folder": folder_id,
            "path": path,
            "file": str(local.resolve()),
            "size": status.st_size,
            "mtime": status.st_mtime_ns,
        }
        return UploadRecord(state_directory(), upload_identity)

    async def download(
        self,
        paths: Sequence[str],
        *,
        basedir: str | os.PathLike[str] | None = None,
        strip: str = ".",
        recursive: bool = False,
        parallel: int = PARALLEL,
        progress: Progress | None = None,
    ) -> list[Path]:
        """Fetches files into ``basedir`` (the working directory), each at its path below ``strip``; returns the paths.

        What is ``strip`` itself becomes ``basedir``.

        Raises BackendAPIError if there is no such file, or a directory without ``recursive``.
        """
        base_folder, stripped_directory = Path(basedir or "."), PurePosixPath(strip.strip("/"))
        remote_files = [str(PurePosixPath(path.strip("/"))) for path in paths]

        def local_path(path: str) -> Path:
            return path_inside(base_folder, str(PurePosixPath(path).relative_to(stripped_directory)))

        listed_sizes: dict[str, int] = {}
        if recursive:
            directories = [path for path in remote_files if await self.is_directory(path)]
            for path in directories:
                listed_sizes |= await self._list_files_below(path, local_path)
            remote_files = [*(path for path in remote_files if path not in directories), *listed_sizes]
        transfers, tickets = self._transfers(), TicketBatches(listed_sizes, self._request_listed_downloads)

        async def download_file(path: str) -> Path:
            target = local_path(path)
            target.parent.mkdir(parents=True, exist_ok=True)

            async def request_ticket() -> Ticket:
                return await tickets.take(path) or await self.request_download(path)

            await transfers.download(path, target, request_ticket, progress=progress)
            return target

        return await run_in_parallel((download_file(path) for path in remote_files), parallel)

    async def download_archive(
        self, path: str, target: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> Path:
        """Fetches a directory as one zip."""
        await self._transfers().download(
            path, Path(target), lambda: self.request_download(path, archive=True), progress=progress
        )
        return Path(target)

    async def is_directory(self, path: str) -> bool:
        """Returns True if the folder has a directory at ``path``."""
        parent, _, name = path.strip("/").rpartition("/")
        if name in ("", "."):
            return True
        try:
            return any(
                [
                    entry["type"] == "DIRECTORY"
                    async for entry in self.iterate_files(parent or ".")
                    if entry["name"] == name
                ]
            )
        except BackendAPIError as error:
            if error.status != 404:
                raise
            return False  # its parent is missing

    async def _request_listed_downloads(self, sizes: Sequence[tuple[str, int]]) -> list[Ticket]:
        return await self.request_downloads([path for path, _ in sizes])

    async def _list_files_below(self, directory: str, local_path: Callable[[str], Path]) -> dict[str, int]:
        """Returns the path and size of every remote file below a directory. Creates the local directories, including
        empty ones.
        """
        sizes: dict[str, int] = {}
        remaining_directories = [directory]
        while remaining_directories:
            path = remaining_directories.pop()
            local_path(path).mkdir(parents=True, exist_ok=True)
            async for entry in self.iterate_files(path or "."):
                entry_path = str(PurePosixPath(path) / entry["name"])
                if entry["type"] == "DIRECTORY":
                    remaining_directories.append(entry_path)
                else:
                    sizes[entry_path] = int(entry["size"])
        return sizes


class AsyncVFolders(Area):
    """Finds and creates folders (``api_session.VFolder``). Called with a name or id, returns a handle."""

    def __call__(self, name: str | UUID) -> AsyncVFolder:
        return AsyncVFolder(self._transport, name)

    async def create(
        self,
        name: str,
        host: str | None = None,
        *,
        group: str | None = None,
        usage_mode: str = "general",
        permission: str = "rw",
        cloneable: bool = False,
        quota: str | int | None = None,
        unmanaged_path: str | None = None,
    ) -> dict[str, Any]:
        """Creates a folder of the caller, or of a group (name or id); ``quota`` in bytes, or as ``10g``.

        An ``unmanaged_path`` is a directory of the nodes, for superadmins where the manager's settings open it.
        """
        body = {
            "name": name,
            "host": host,
            "group": group,
            "usage_mode": usage_mode,
            "permission": permission,
            "cloneable": cloneable,
            "quota": quota,
            "unmanaged_path": unmanaged_path,
        }
        return await self._change("POST", "/folders", body)

    async def list(self, list_all: bool = False, *, trash: bool = False) -> Sequence[dict[str, Any]]:
        """Lists the folders that the caller may use. With ``trash`` it lists the deleted folders instead.

        ``list_all`` is for superadmins.
        """
        query = {"all": "true" if list_all else None, "trash": "true" if trash else None}
        return list((await self._get_reply("/folders", **query)).json())

    async def paginated_list(
        self,
        group: str | None = None,
        *,
        root: str = "vfolder_list",
        fields: Sequence[str] = LIST_FIELDS,
        **paging: Unpack[Paging],
    ) -> PaginatedResult:
        """Returns a page of folders. ``root`` selects the GraphQL list, such as ``vfolder_own_list``.

        Other roots: ``vfolder_own_list``, ``vfolder_invited_list``, ``vfolder_project_list``.
        """
        arguments = {"group_id": ("UUID", group)}
        return await self._admin.fetch_page(root, fields, arguments, **paging)

    async def list_hosts(self) -> dict[str, Any]:
        """Returns the ``default`` and ``allowed`` storage hosts."""
        return await self._get("/folders/_/hosts")

    async def list_all_hosts(self) -> dict[str, Any]:
        """Lists the storage hosts of the whole cluster, for superadmins."""
        return await self._get("/folders/_/all_hosts")

    async def list_allowed_types(self) -> Sequence[str]:
        return list((await self._get_reply("/folders/_/allowed_types")).json())

    async def delete_by_id(self, folder_id: UUID | str) -> None:
        """Moves a folder into the trash."""
        await self._change("DELETE", "/folders", {"id": str(folder_id)})

    async def invitations(self) -> Sequence[dict[str, Any]]:
        """Lists the open invitations of the caller."""
        return list((await self._get("/folders/invitations/list"))["invitations"])

    async def sent_invitations(self) -> Sequence[dict[str, Any]]:
        """Lists the open invitations that the caller has sent."""
        return list((await self._get("/folders/invitations/list-sent"))["invitations"])

    async def accept_invitation(self, inv_id: str) -> None:
        await self._change("POST", "/folders/invitations/accept", {"inv_id": inv_id})

    async def delete_invitation(self, inv_id: str) -> None:
        """Declines an invitation, or withdraws one's own."""
        await self._change("DELETE", "/folders/invitations/delete", {"inv_id": inv_id})

    async def update_invitation(self, inv_id: str, perm: str) -> None:
        """Changes the permission that an invitation of the caller offers."""
        await self._change("POST", f"/folders/invitations/update/{encode_segment(inv_id)}", {"perm": perm})

    async def change_ownership(self, vfolder: UUID | str, user_email: str) -> None:
        """Gives a user's folder to another user; for superadmins."""
        body = {"vfolder": str(vfolder), "user_email": user_email}
        await self._change("POST", "/folders/_/change-ownership", body)

    async def list_shared(self, vfolder_id: str | None = None) -> Sequence[dict[str, Any]]:
        """Lists the users with whom the caller's folders are shared."""
        return list((await self._get("/folders/_/shared", vfolder_id=vfolder_id))["shared"])

    async def update_shared(self, vfolder: str, user: str, perm: str | None) -> None:
        """Changes the permission of a user on a shared folder; None ends the share."""
        await self._change("POST", "/folders/_/shared", {"vfolder": vfolder, "user": user, "perm": perm})


VFolder = Blocking[AsyncVFolder]
"""The blocking handle of a folder."""
