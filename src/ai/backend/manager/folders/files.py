"""Lists and changes the files in virtual folders. Clients transfer contents directly with the storage
proxy by tickets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ai.backend.common.errors import InvalidInput, LimitExceeded, WrongKindOfFile
from ai.backend.common.folders import FolderKey, HostPermission
from ai.backend.common.volume_paths import FolderPath
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.folders.access import FolderFinder
from ai.backend.manager.folders.gateway import FolderGateway
from ai.backend.manager.folders.model import FileInfo, FolderAccess, Ticket

MAX_LISTED_FILES = 50_000
_PAGE_ENTRIES = 1_000


def _relative_path(path: str, field: str = "path") -> str:
    """Returns a path relative to the folder; a leading slash is dropped."""
    try:
        return str(FolderPath.parse(path.lstrip("/")))
    except InvalidInput as e:
        raise type(e)(e.message, data={field: "malformed"}) from None


def _file_path(path: str, field: str = "path") -> str:
    relative_path = _relative_path(path, field)
    if relative_path == ".":
        raise InvalidInput("This path names no file.", data={field: "names no file"})
    return relative_path


def _managed_key(access: FolderAccess) -> FolderKey:
    if access.folder.unmanaged_path is not None:
        raise InvalidInput(
            f"The files of {access.folder.name!r} are with no storage proxy: mount it.", data={"name": "unmanaged"}
        )
    return access.folder.key


class FolderFiles:
    """Lists and changes files by paths relative to the folder. Raises the errors of :meth:`FolderFinder.one` and of the
    storage proxy, and Forbidden where the host does not allow the operation."""

    def __init__(self, storage: FolderGateway, finder: FolderFinder) -> None:
        self._storage = storage
        self._finder = finder

    async def _readable_key(self, caller: Caller, ref: str, needs: HostPermission | None = None) -> FolderKey:
        return _managed_key(await self._finder.one(caller, ref, needs=needs))

    async def _writable_key(self, caller: Caller, ref: str, needs: HostPermission) -> FolderKey:
        return _managed_key(await self._finder.one(caller, ref, to_write=True, needs=needs))

    async def list(
        self, caller: Caller, ref: str, path: str, *, limit: int | None = None, cursor: str | None = None
    ) -> tuple[Sequence[FileInfo], str | None]:
        """Returns a page of a directory and the next cursor; without ``limit``, all entries up to MAX_LISTED_FILES."""
        key, relative_path = await self._readable_key(caller, ref), _relative_path(path)
        if limit is not None:
            return await self._storage.list_files(key, relative_path, limit=limit, cursor=cursor)
        entries: list[FileInfo] = []
        while len(entries) < MAX_LISTED_FILES:
            items, cursor = await self._storage.list_files(key, relative_path, limit=_PAGE_ENTRIES, cursor=cursor)
            entries += items
            if cursor is None:
                break
        return entries, cursor

    async def make_directories(
        self, caller: Caller, ref: str, paths: Sequence[str], *, parents: bool = True, exist_ok: bool = False
    ) -> Mapping[str, str | None]:
        """Creates directories. Returns requested path -> None if created, else the reason of the failure."""
        requested_paths = {_file_path(path): path for path in paths}
        key = await self._writable_key(caller, ref, HostPermission.MODIFY)
        problem_by_path = await self._storage.make_directories(
            key, list(requested_paths), parents=parents, exist_ok=exist_ok
        )
        return {requested_paths.get(path, path): problem for path, problem in problem_by_path.items()}

    async def rename(
        self, caller: Caller, ref: str, path: str, new_name: str, *, is_directory: bool | None = None
    ) -> None:
        """Renames a file or directory. Raises Conflict if the new name is taken.

        Raises WrongKindOfFile if ``is_directory`` is True for a file or False for a directory.
        """
        relative_path, name = _file_path(path, "target_path"), FolderPath.check_name(new_name)
        key = await self._writable_key(caller, ref, HostPermission.MODIFY)
        if is_directory is not None and await self._is_directory(key, relative_path) is not is_directory:
            expected_kind = "a directory" if is_directory else "a file"
            raise WrongKindOfFile(f"{relative_path[:128]!r} is not {expected_kind}.", data={"is_dir": "wrong"})
        await self._storage.rename_file(key, relative_path, name)

    async def _is_directory(self, key: FolderKey, path: str) -> bool:
        try:
            await self._storage.list_files(key, path, limit=1)
        except WrongKindOfFile:
            return False
        return True

    async def move(self, caller: Caller, ref: str, source: str, target: str) -> None:
        """Moves a file to ``target``, or into ``target`` if it is a directory. Raises Conflict if the target exists."""
        source_path, target_path = _file_path(source, "src"), _relative_path(target, "dst")
        await self._storage.move_file(
            await self._writable_key(caller, ref, HostPermission.MODIFY), source_path, target_path
        )

    async def delete(self, caller: Caller, ref: str, paths: Sequence[str], *, recursive: bool = False) -> None:
        """Deletes files. Raises WrongKindOfFile for a directory without ``recursive``."""
        files = [_file_path(path, "files") for path in paths]
        key = await self._writable_key(caller, ref, HostPermission.MODIFY)
        await self._storage.delete_files(key, files, recursive=recursive)

    async def read(self, caller: Caller, ref: str, path: str, *, max_bytes: int) -> bytes:
        """Returns the bytes of a small file of a folder that the caller may mount. Raises LimitExceeded for more than
        ``max_bytes``."""
        relative_path = _file_path(path)
        key = await self._readable_key(caller, ref, HostPermission.MOUNT)
        return await self._storage.read_file(key, relative_path, max_bytes=max_bytes)

    async def upload_ticket(self, caller: Caller, ref: str, path: str, size: int) -> Ticket:
        """Returns a ticket to upload a file; a file of size 0 is created at once. Raises LimitExceeded for a file that
        the folder's own limit leaves no room for."""
        relative_path = _file_path(path)
        key = await self._key_with_room(caller, ref, size)
        return await self._storage.upload_ticket(key, relative_path, size)

    async def upload_tickets(self, caller: Caller, ref: str, sizes: Sequence[tuple[str, int]]) -> Sequence[Ticket]:
        """Returns the tickets of several uploads in the order of ``sizes``, pairs of path and bytes; either all files
        have room, or LimitExceeded is raised."""
        sizes = [(_file_path(path, "files"), size) for path, size in sizes]
        key = await self._key_with_room(caller, ref, sum(size for _, size in sizes))
        return await self._storage.upload_tickets(key, sizes)

    async def _key_with_room(self, caller: Caller, ref: str, size: int) -> FolderKey:
        """Returns the key of a folder to which the caller may upload. Raises LimitExceeded if the folder's own limit
        leaves no room for ``size`` bytes."""
        access = await self._finder.one(caller, ref, to_write=True, needs=HostPermission.UPLOAD)
        key, max_folder_bytes = _managed_key(access), access.folder.max_size
        if max_folder_bytes and (await self._storage.usage(key)).bytes + size > max_folder_bytes:
            raise LimitExceeded(
                f"The folder may have {max_folder_bytes} bytes; {size} more do not fit.",
                data={"size": max_folder_bytes},
            )
        return key

    async def download_tickets(self, caller: Caller, ref: str, paths: Sequence[str]) -> Sequence[Ticket]:
        """Returns tickets to download several files, in their order."""
        relative_paths = [_file_path(path, "files") for path in paths]
        key = await self._readable_key(caller, ref, HostPermission.DOWNLOAD)
        return await self._storage.download_tickets(key, relative_paths, requester=str(caller.user_id))

    async def download_ticket(self, caller: Caller, ref: str, path: str, *, archive: bool = False) -> Ticket:
        """Returns a ticket to download a file, or a directory if ``archive`` is True."""
        relative_path = _relative_path(path) if archive else _file_path(path)
        key = await self._readable_key(caller, ref, HostPermission.DOWNLOAD)
        return await self._storage.download_ticket(key, relative_path, archive=archive, requester=str(caller.user_id))
