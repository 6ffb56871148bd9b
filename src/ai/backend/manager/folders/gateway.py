"""Declares the interface to storage proxies, which hold the files of virtual folders."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from ai.backend.common.folders import FolderKey
from ai.backend.common.volume_paths import QuotaScopeId
from ai.backend.manager.folders.model import FileInfo, FolderUsage, ScopeUsage, Ticket
from ai.backend.manager.volumes.gateway import VolumeGateway

Progress: TypeAlias = Callable[[float, float], Awaitable[None]]


class FolderGateway(Protocol):
    """Manages folders, files and quota scopes on storage proxies (peer facts 5). Paths are relative to the folder.

    Any call raises Unavailable while the proxy does not answer, NotFound for an unknown proxy, volume, folder or path,
    and InvalidInput for a path that the proxy refuses.
    """

    async def scope_usage(self, host: str, scope: QuotaScopeId) -> ScopeUsage:
        """Returns the usage and the limit of a quota scope. Raises QuotaScopeNotFound for a scope that was never
        created.
        """
        ...

    async def set_scope_limit(self, host: str, scope: QuotaScopeId, limit_bytes: int | None) -> None:
        """Sets or (with None) removes the limit of a quota scope, and creates the scope if needed."""

    async def create_folder(self, folder: FolderKey) -> None:
        """Creates a folder, or does nothing if the folder exists."""

    async def delete_folder(self, folder: FolderKey) -> None:
        """Deletes a folder with its files, or does nothing if the folder does not exist."""

    async def clone_folder(self, source: FolderKey, target: FolderKey, progress: Progress | None = None) -> None:
        """Copies a folder to another one on the same proxy; a repeated call is harmless. ``progress`` gets the bytes
        copied and in total.
        """

    async def mount_path(self, folder: FolderKey, subpath: str = "") -> str:
        """Returns the path of a folder on the nodes."""
        ...

    async def usage(self, folder: FolderKey) -> FolderUsage: ...
    async def list_files(
        self, folder: FolderKey, path: str, *, limit: int = 1000, cursor: str | None = None
    ) -> tuple[Sequence[FileInfo], str | None]:
        """Returns a page of a directory, and the cursor of the next page or None after the last page."""
        ...

    async def make_directories(
        self, folder: FolderKey, paths: Sequence[str], *, parents: bool, exist_ok: bool
    ) -> Mapping[str, str | None]:
        """Creates directories. Returns path -> None if created, else the reason of the failure."""
        ...

    async def rename_file(self, folder: FolderKey, path: str, new_name: str) -> None: ...
    async def move_file(self, folder: FolderKey, source: str, target: str) -> None: ...
    async def delete_files(self, folder: FolderKey, paths: Sequence[str], *, recursive: bool) -> None: ...
    async def read_file(self, folder: FolderKey, path: str, *, max_bytes: int) -> bytes:
        """Returns the bytes of a file. Raises LimitExceeded if there are more than ``max_bytes``."""
        ...

    async def upload_ticket(self, folder: FolderKey, path: str, size: int) -> Ticket: ...
    async def upload_tickets(self, folder: FolderKey, sizes: Sequence[tuple[str, int]]) -> Sequence[Ticket]:
        """Returns the tickets of several uploads in the order of ``sizes``, pairs of path and bytes."""
        ...

    async def download_ticket(self, folder: FolderKey, path: str, *, archive: bool, requester: str) -> Ticket: ...
    async def download_tickets(
        self, folder: FolderKey, paths: Sequence[str], *, requester: str
    ) -> Sequence[Ticket]: ...


class StorageGateway(FolderGateway, VolumeGateway, Protocol):
    """Combines the interfaces for folders and for volumes, for tests and simulations."""
