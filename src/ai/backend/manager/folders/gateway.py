"""Where the files of virtual folders lie."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from ai.backend.common.folders import FolderKey
from ai.backend.common.volume_paths import QuotaScopeId
from ai.backend.manager.folders.model import FileInfo, FolderUsage, ScopeUsage, Ticket
from ai.backend.manager.volumes.model import Volume, VolumeHealth, VolumeMount

Progress: TypeAlias = Callable[[float, float], Awaitable[None]]


class StorageGateway(Protocol):
    """The storage proxies (peer facts 5). Paths are relative to the folder.

    Any call raises Unavailable while the proxy does not answer, and NotFound for a proxy, volume, folder or path that
    there is not; InvalidInput is the proxy's word about a path that it does not take.
    """

    async def volumes(self) -> Mapping[str, Volume]:
        """Host -> volume, of every proxy that answers."""
        ...

    async def default_host(self) -> str | None:
        """Where folders are made whose request names no host."""
        ...

    async def blocked(self) -> Mapping[str, frozenset[str]]:
        """Host -> what nobody may do there, in the words of HostPermission and ``clone-vfolder``."""
        ...

    async def volume_health(self, host: str) -> VolumeHealth: ...
    async def volume_usage(self, host: str) -> Mapping[str, int]:
        """``capacity_bytes`` and ``used_bytes``."""
        ...

    async def volume_metric(self, host: str) -> Mapping[str, float]:
        """Raises BackendError where the volume measures nothing."""
        ...

    async def mounts(self) -> Mapping[str, Sequence[VolumeMount]]:
        """Proxy -> what each of its volumes lies on, of every proxy that answers."""
        ...

    async def scope_usage(self, host: str, scope: QuotaScopeId) -> ScopeUsage:
        """Raises QuotaScopeNotFound where nothing was ever kept for it."""
        ...

    async def set_scope_limit(self, host: str, scope: QuotaScopeId, limit_bytes: int | None) -> None:
        """Makes the scope if it is not there; None takes the limit away."""

    async def create_folder(self, folder: FolderKey) -> None:
        """Also right if it is there already."""

    async def delete_folder(self, folder: FolderKey) -> None:
        """With everything in it; also right if it is gone already."""

    async def clone_folder(self, source: FolderKey, target: FolderKey, progress: Progress | None = None) -> None:
        """Make ``target`` with all that is in ``source``; returns when it is there as a whole. May be repeated.

        Both are on one proxy. ``progress`` is told the bytes done and the bytes there are.
        """

    async def mount_path(self, folder: FolderKey, subpath: str = "") -> str:
        """The directory on the nodes."""
        ...

    async def usage(self, folder: FolderKey) -> FolderUsage: ...
    async def list_files(
        self, folder: FolderKey, path: str, *, limit: int = 1000, cursor: str | None = None
    ) -> tuple[Sequence[FileInfo], str | None]:
        """One page of a directory, and where the next one begins; None after the last."""
        ...

    async def make_directories(
        self, folder: FolderKey, paths: Sequence[str], *, parents: bool, exist_ok: bool
    ) -> Mapping[str, str | None]:
        """Path -> None where it was made, else what is in the way."""
        ...

    async def rename_file(self, folder: FolderKey, path: str, new_name: str) -> None: ...
    async def move_file(self, folder: FolderKey, source: str, target: str) -> None: ...
    async def delete_files(self, folder: FolderKey, paths: Sequence[str], *, recursive: bool) -> None: ...
    async def upload_ticket(self, folder: FolderKey, path: str, size: int) -> Ticket: ...
    async def download_ticket(self, folder: FolderKey, path: str, *, archive: bool) -> Ticket: ...
