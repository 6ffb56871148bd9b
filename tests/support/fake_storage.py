"""A storage proxy without HTTP: the manager's port over plain directories.

Knobs: ``down`` makes every call Unavailable; ``calls`` says what was asked; ``blocks`` is what nobody may do on a host;
``limits`` are those of quota scopes, which it keeps and does not enforce.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from ai.backend.common.errors import (
    FileAlreadyExists,
    FolderNotFound,
    LimitExceeded,
    NoSuchFile,
    QuotaScopeNotFound,
    Unavailable,
    VolumeNotFound,
    WrongKindOfFile,
)
from ai.backend.common.folders import FolderKey
from ai.backend.common.volume_paths import FolderPath, QuotaScopeId
from ai.backend.manager.folders.gateway import Progress
from ai.backend.manager.folders.model import FileInfo, FolderUsage, ScopeUsage, Ticket
from ai.backend.manager.volumes.model import Volume, VolumeHealth, VolumeMount


class FakeStorage:
    """Implements :class:`ai.backend.manager.folders.gateway.StorageGateway` with volumes below ``root``."""

    def __init__(self, root: Path, *hosts: str) -> None:
        self.root = root
        self.hosts = hosts or ("local:volume1",)
        self.calls: list[str] = []
        self.down = False
        self.blocks: dict[str, frozenset[str]] = {}
        self.limits: dict[tuple[str, QuotaScopeId], int | None] = {}
        self.clone_gate = asyncio.Event()
        self.clone_gate.set()

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if self.down:
            raise Unavailable("The storage proxy local does not answer.")

    def directory(self, folder: FolderKey) -> Path:
        """Where the files of a folder are."""
        if folder.host not in self.hosts:
            raise VolumeNotFound(f"There is no volume {folder.volume!r}.")
        return self.root / folder.volume / folder.quota_scope.replace(":", "-") / folder.folder_id.hex

    def _there(self, folder: FolderKey, path: str = "") -> Path:
        directory = self.directory(folder)
        if not directory.is_dir():
            raise FolderNotFound
        return directory.joinpath(*FolderPath.parse(path).parts)

    async def volumes(self) -> Mapping[str, Volume]:
        return {} if self.down else {h: Volume(host=h, backend="vfs", capabilities=("vfolder",)) for h in self.hosts}

    async def default_host(self) -> str | None:
        return self.hosts[0]

    async def blocked(self) -> Mapping[str, frozenset[str]]:
        return self.blocks

    async def volume_health(self, host: str) -> VolumeHealth:
        self._note("health")
        return VolumeHealth(status="healthy")

    async def volume_usage(self, host: str) -> Mapping[str, int]:
        self._note("fs-usage")
        return {"capacity_bytes": 1 << 40, "used_bytes": 1 << 30}

    async def volume_metric(self, host: str) -> Mapping[str, float]:
        self._note("metric")
        if host not in self.hosts:
            raise VolumeNotFound(f"There is no volume {host!r}.")
        return {"iops_read": 1.0, "io_bytes_read": 4096}

    async def mounts(self) -> Mapping[str, Sequence[VolumeMount]]:
        found: dict[str, list[VolumeMount]] = {}
        for host in self.hosts:
            proxy, _, volume = host.partition(":")
            mount = VolumeMount(volume=volume, path=str(self.root), mount_point="/", source="/dev/sda", fstype="ext4")
            found.setdefault(proxy, []).append(mount)
        return found

    async def scope_usage(self, host: str, scope: QuotaScopeId) -> ScopeUsage:
        self._note("scope")
        directory = self.root / host.partition(":")[2] / str(scope).replace(":", "-")
        if host not in self.hosts:
            raise VolumeNotFound(f"There is no volume {host!r}.")
        if not directory.is_dir() and (host, scope) not in self.limits:
            raise QuotaScopeNotFound
        files = [p for p in directory.rglob("*") if p.is_file()]
        return ScopeUsage(
            used_bytes=sum(p.stat().st_size for p in files),
            file_count=len(files),
            limit_bytes=self.limits.get((host, scope)),
            enforcement="soft",
        )

    async def set_scope_limit(self, host: str, scope: QuotaScopeId, limit_bytes: int | None) -> None:
        self._note("limit")
        self.limits[host, scope] = limit_bytes

    async def create_folder(self, folder: FolderKey) -> None:
        self._note("create")
        self.directory(folder).mkdir(parents=True, exist_ok=True)

    async def delete_folder(self, folder: FolderKey) -> None:
        self._note("delete")
        shutil.rmtree(self.directory(folder), ignore_errors=True)

    async def clone_folder(self, source: FolderKey, target: FolderKey, progress: Progress | None = None) -> None:
        self._note("clone")
        directory = self._there(source)
        if progress is not None:
            await progress(0, 1)
        await self.clone_gate.wait()
        if not self.directory(target).exists():
            shutil.copytree(directory, self.directory(target))

    async def mount_path(self, folder: FolderKey, subpath: str = "") -> str:
        self._note("mount")
        directory = self._there(folder, subpath)
        if not directory.is_dir():
            raise NoSuchFile
        return str(directory)

    async def read_file(self, folder: FolderKey, path: str, *, max_bytes: int) -> bytes:
        self._note("read")
        content = self._there(folder, path)
        if not content.is_file():
            raise NoSuchFile
        if content.stat().st_size > max_bytes:
            raise LimitExceeded(f"The file is larger than {max_bytes} bytes.")
        return content.read_bytes()

    async def usage(self, folder: FolderKey) -> FolderUsage:
        self._note("usage")
        files = [p for p in self._there(folder).rglob("*") if p.is_file()]
        return FolderUsage(files=len(files), bytes=sum(p.stat().st_size for p in files))

    async def list_files(
        self, folder: FolderKey, path: str, *, limit: int = 1000, cursor: str | None = None
    ) -> tuple[Sequence[FileInfo], str | None]:
        self._note("list")
        directory = self._there(folder, path)
        if not directory.exists():
            raise NoSuchFile
        if not directory.is_dir():
            raise WrongKindOfFile
        start = int(cursor or 0)
        names = sorted(os.listdir(directory))
        page = names[start : start + limit]
        return [_info(directory / n) for n in page], str(start + limit) if start + limit < len(names) else None

    async def make_directories(
        self, folder: FolderKey, paths: Sequence[str], *, parents: bool, exist_ok: bool
    ) -> Mapping[str, str | None]:
        self._note("mkdir")
        made: dict[str, str | None] = {}
        for path in paths:
            try:
                self._there(folder, path).mkdir(parents=parents, exist_ok=exist_ok)
                made[path] = None
            except OSError as e:
                made[path] = e.strerror
        return made

    async def rename_file(self, folder: FolderKey, path: str, new_name: str) -> None:
        old = self._there(folder, path)
        await self.move_file(folder, path, str(old.with_name(new_name).relative_to(self._there(folder))))

    async def move_file(self, folder: FolderKey, source: str, target: str) -> None:
        self._note("move")
        old, new = self._there(folder, source), self._there(folder, target)
        if new.is_dir():
            new = new / old.name
        if not old.exists():
            raise NoSuchFile
        if new.exists():
            raise FileAlreadyExists
        old.rename(new)

    async def delete_files(self, folder: FolderKey, paths: Sequence[str], *, recursive: bool) -> None:
        self._note("delete-files")
        found = [self._there(folder, path) for path in paths]
        if not recursive and any(path.is_dir() for path in found):
            raise WrongKindOfFile
        missing = [path for path in found if not path.exists()]
        for path in found:
            if path.is_dir():
                shutil.rmtree(path)
            elif path.exists():
                path.unlink()
        if missing:
            raise NoSuchFile

    async def upload_ticket(self, folder: FolderKey, path: str, size: int) -> Ticket:
        self._note("upload")
        target = self._there(folder, path)
        if size == 0:
            target.touch()
        return Ticket(url="http://storage.test/upload", token=f"{folder.vfid}:{path}:{size}")

    async def upload_tickets(self, folder: FolderKey, sizes: Sequence[tuple[str, int]]) -> Sequence[Ticket]:
        return [await self.upload_ticket(folder, path, size) for path, size in sizes]

    async def download_tickets(self, folder: FolderKey, paths: Sequence[str], *, requester: str) -> Sequence[Ticket]:
        return [await self.download_ticket(folder, path, archive=False, requester=requester) for path in paths]

    async def download_ticket(self, folder: FolderKey, path: str, *, archive: bool, requester: str) -> Ticket:
        self._note("download")
        target = self._there(folder, path)
        if not target.exists():
            raise NoSuchFile
        if target.is_dir() and not archive:
            raise WrongKindOfFile
        return Ticket(url="http://storage.test/download", token=f"{folder.vfid}:{path}")


def _info(path: Path) -> FileInfo:
    told = path.lstat()
    return FileInfo(
        name=path.name,
        is_directory=path.is_dir(),
        size=told.st_size,
        mode=stat.filemode(told.st_mode),
        created=told.st_ctime,
        modified=told.st_mtime,
        accessed=told.st_atime,
    )
