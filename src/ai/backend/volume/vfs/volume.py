"""Implements the ``vfs`` backend: a volume in any directory of any file system, with soft quotas only."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import functools
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar
from uuid import uuid4

from ai.backend.common.errors import FileAlreadyExists, FolderNotFound, InvalidInput, NoSuchFile, WrongKindOfFile
from ai.backend.common.volume_paths import FolderPath, QuotaScopeId, VFolderId
from ai.backend.node.linux.open_beneath import WALK
from ai.backend.node.linux.syscalls import rename_noreplace
from ai.backend.plugin.volume import (
    AbstractVolume,
    ArchiveEntry,
    FileEntry,
    FolderUsage,
    Mount,
    OpenFile,
    Page,
    Progress,
    UnfinishedClone,
    Upload,
    UploadRecord,
    VolumeCapability,
    VolumeContext,
    VolumeMetric,
    VolumeUsage,
)
from ai.backend.volume.vfs import clones, entries, migration, trees, uploads
from ai.backend.volume.vfs.layout import Layout
from ai.backend.volume.vfs.mounts import disk_metric, disk_of, mount_of
from ai.backend.volume.vfs.open_directory import OpenDirectory, translated_os_errors

log = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")
_SHORT_THREAD_COUNT = 16
_LONG_THREAD_COUNT = 4


class VfsVolume(AbstractVolume):
    """Serves a volume that is a directory of any file system; takes no options.

    Long work (counting, copying, removing) has threads of its own.
    """

    backend: ClassVar[str] = "vfs"

    def __init__(self, name: str, path: Path, options: Mapping[str, Any], context: VolumeContext) -> None:
        super().__init__(name, path, options, context)
        if options:
            raise InvalidInput(f"volume.{name}: the vfs backend has no setting {sorted(options)[0]!r}.")
        self.layout = Layout(path, context.owner)
        self._waypoint = context.waypoint
        self._short = ThreadPoolExecutor(_SHORT_THREAD_COUNT, f"vfs-{name}")
        self._long = ThreadPoolExecutor(_LONG_THREAD_COUNT, f"vfs-{name}-long")
        self._purges: dict[Path, asyncio.Future[None]] = {}
        self._purge_again: set[Path] = set()
        self._disk: Path | None = None
        self._stopping = threading.Event()

    @property
    def capabilities(self) -> frozenset[VolumeCapability]:
        capabilities = {VolumeCapability.VFOLDER, VolumeCapability.FAST_FS_SIZE}
        return frozenset(capabilities if self._disk is None else {*capabilities, VolumeCapability.METRIC})

    async def start(self) -> None:
        await self._run(self.layout.prepare)
        self._disk = await self._run(disk_of, self.path)
        await self._run(clones.sweep, self.layout)
        for scope in await self._run(self.layout.scopes):
            self._start_purge(scope / ".trash")

    async def migrate(self, folders: Sequence[VFolderId]) -> Sequence[str]:
        return await self._run_long(migration.migrate, self.layout, folders)

    async def stop(self) -> None:
        """Closes the volume. Removing the trash continues at the next start."""
        self._stopping.set()
        for purge_future in self._purges.values():
            purge_future.cancel()
        self._short.shutdown(wait=False, cancel_futures=True)
        self._long.shutdown(wait=False, cancel_futures=True)

    async def check(self) -> str | None:
        try:
            await self._run(lambda: os.close(os.open(self.path / "version.txt", os.O_RDONLY)))
        except OSError as e:
            return f"{self.path}: {e.strerror}"
        return None

    async def usage(self) -> VolumeUsage:
        status = await self._run(os.statvfs, self.path)
        total_bytes = status.f_frsize * status.f_blocks
        return VolumeUsage(total_bytes, total_bytes - status.f_frsize * status.f_bfree)

    async def metric(self) -> VolumeMetric:
        return await (super().metric() if self._disk is None else self._run(disk_metric, self._disk))

    async def mount(self) -> Mount | None:
        return await self._run(mount_of, self.path)

    async def create_scope(self, scope: QuotaScopeId) -> None:
        with translated_os_errors():
            await self._run(self.layout.ensure_scope, scope)

    async def scope_limit(self, scope: QuotaScopeId) -> int | None:
        return await self._run(self._read_limit, scope)

    def _read_limit(self, scope: QuotaScopeId) -> int | None:
        self.layout.existing_scope(scope)
        try:
            return int(self.layout.limit_file(scope).read_text())
        except FileNotFoundError:
            return None

    async def set_scope_limit(self, scope: QuotaScopeId, limit: int | None) -> None:
        await self._run(self._write_limit, scope, limit)

    def _write_limit(self, scope: QuotaScopeId, limit: int | None) -> None:
        self.layout.existing_scope(scope)
        path = self.layout.limit_file(scope)
        if limit is None:
            path.unlink(missing_ok=True)
            return
        temporary_path = path.with_name(f".limit.{uuid4().hex}.tmp")  # other processes may write at the same time
        try:
            with translated_os_errors(), temporary_path.open("w") as file:
                file.write(f"{limit}\n")
                file.flush()
                os.fsync(file.fileno())
            temporary_path.replace(path)
        finally:
            temporary_path.unlink(missing_ok=True)

    async def scope_usage(self, scope: QuotaScopeId) -> FolderUsage:
        return await self._run_long(self._measure_scope, scope)

    def _measure_scope(self, scope: QuotaScopeId) -> FolderUsage:
        files = used_bytes = 0
        for path in self.layout.folders(self.layout.existing_scope(scope)):
            with suppress(FileNotFoundError), OpenDirectory.at(path) as folder:
                usage = trees.measure(folder.fd)
                files, used_bytes = files + usage.file_count, used_bytes + usage.used_bytes
        return FolderUsage(files, used_bytes)

    async def create_folder(self, folder: VFolderId, *, mode: int = 0o755) -> None:
        await self._run(self._create_folder, folder, mode)

    def _create_folder(self, folder: VFolderId, mode: int) -> None:
        path = self.layout.folder(folder)
        with translated_os_errors():
            for _ in range(16):  # a deletion may remove an empty parent meanwhile
                self.layout.ensure_scope(folder.scope)
                path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                try:
                    path.mkdir(mode=0o700)
                except FileExistsError:
                    if stat.S_IMODE(path.stat().st_mode) != 0o700:  # else its creator was killed before the chmod
                        return
                except FileNotFoundError:
                    continue
                with OpenDirectory.at(path) as directory:
                    self.layout.give_to_owner(directory.fd)
                    os.fchmod(directory.fd, mode)
                return
        raise FileAlreadyExists("The folder's place is being changed.")

    async def delete_folder(self, folder: VFolderId) -> None:
        await self._run(self._delete_folder, folder)
        self._start_purge(self.layout.scope(folder.scope) / ".trash")

    def _delete_folder(self, folder: VFolderId) -> None:
        with self._headroom(self.layout.scope(folder.scope)):
            clones.delete_folder(self.layout, folder, self._waypoint)

    def _headroom(self, scope: Path) -> AbstractContextManager[None]:
        """Does nothing here; a backend with hard limits reserves the space that deleting needs in a full scope."""
        return nullcontext()

    async def has_folder(self, folder: VFolderId) -> bool:
        return await self._run(self.layout.folder(folder).is_dir)

    async def clone_folder(
        self, source: VFolderId, target_volume: AbstractVolume, target: VFolderId, progress: Progress
    ) -> None:
        if not isinstance(target_volume, VfsVolume):
            raise InvalidInput(f"A folder cannot be cloned from {self.name} to {target_volume.name}.")
        try:
            source_place = clones.CopyPlace(self.layout, self.name, source)
            target_place = clones.CopyPlace(target_volume.layout, target_volume.name, target)
            await self._run_long(clones.clone, source_place, target_place, progress, self._waypoint)
        finally:
            target_volume._start_purge(target_volume.layout.scope(target.scope) / ".trash")

    async def unfinished_clones(self) -> Sequence[UnfinishedClone]:
        return await self._run(clones.unfinished, self.layout)

    async def mount_path(self, folder: VFolderId, subpath: FolderPath) -> Path:
        def check(root: OpenDirectory) -> None:
            with translated_os_errors(subpath):
                os.close(root.open(subpath, os.O_PATH))

        await self._run_in_folder(folder, check)
        return self.layout.folder(folder).absolute().joinpath(*subpath.parts)

    async def folder_usage(self, folder: VFolderId) -> FolderUsage:
        def measure() -> FolderUsage:
            with self._open_folder(folder) as root:
                return trees.measure(root.fd)

        return await self._run_long(measure)

    async def list_directory(
        self, folder: VFolderId, path: FolderPath, *, limit: int, cursor: str | None = None
    ) -> Page:
        return await self._run_in_folder(folder, entries.list_directory, path, limit, cursor)

    async def stat(self, folder: VFolderId, path: FolderPath) -> FileEntry:
        return await self._run_in_folder(folder, entries.stat_of, path)

    async def make_directory(self, folder: VFolderId, path: FolderPath, *, parents: bool, exist_ok: bool) -> None:
        await self._run_in_folder(folder, self._make_directory, path, parents, exist_ok)

    def _make_directory(self, root: OpenDirectory, path: FolderPath, parents: bool, exist_ok: bool) -> None:
        with translated_os_errors(path):
            if parents:
                uploads.make_parents(self.layout, root, path)
            try:
                was_created = uploads.make_directory(self.layout, root, path)
            except WrongKindOfFile as e:
                raise FileAlreadyExists(e.message) from None
            if not was_created and not exist_ok:
                raise FileAlreadyExists(data={"path": str(path)[:256]})

    async def rename(self, folder: VFolderId, path: FolderPath, new_name: str) -> None:
        name = FolderPath.check_name(new_name)
        await self._run_in_folder(folder, self._move, path, FolderPath((*path.parts[:-1], name)))

    async def move(self, folder: VFolderId, source: FolderPath, target: FolderPath) -> None:
        await self._run_in_folder(folder, self._move_into, source, target)

    def _move_into(self, root: OpenDirectory, source: FolderPath, target: FolderPath) -> None:
        try:
            os.close(root.open(target, WALK))
        except OSError as e:
            if e.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EXDEV, errno.ELOOP):
                raise
        else:
            target = target / source.parts[-1] if source.parts else target
        self._move(root, source, target)

    def _move(self, root: OpenDirectory, source: FolderPath, target: FolderPath) -> None:
        with (
            translated_os_errors(source),
            root.parent(source) as (source_dir, source_name),
            root.parent(target) as (target_dir, target_name),
        ):
            try:
                rename_noreplace(source_dir, source_name, target_dir, target_name)
            except FileExistsError:
                raise FileAlreadyExists(data={"path": str(target)[:256]}) from None
            except OSError as e:
                if e.errno == errno.EINVAL:
                    raise InvalidInput("A directory cannot be moved into itself.") from None
                raise
        self._waypoint("rename.done")

    async def delete_files(self, folder: VFolderId, paths: Sequence[FolderPath], *, recursive: bool) -> None:
        scope = self.layout.scope(folder.scope)
        try:
            await self._run_in_folder(folder, self._delete_files, scope, paths, recursive)
        finally:
            self._start_purge(scope / ".trash")

    def _delete_files(self, root: OpenDirectory, scope: Path, paths: Sequence[FolderPath], recursive: bool) -> None:
        missing_paths: list[str] = []
        are_directories: list[bool] = []
        for path in paths:
            with translated_os_errors(path):
                try:
                    with root.parent(path) as (directory_fd, name):
                        are_directories.append(stat.S_ISDIR(os.lstat(name, dir_fd=directory_fd).st_mode))
                except (FileNotFoundError, NotADirectoryError):
                    are_directories.append(False)
            if are_directories[-1] and not recursive:
                message = "That is a directory; deleting it takes 'recursive'."
                raise WrongKindOfFile(message, data={"path": str(path)[:256]})
        for path, is_directory in zip(paths, are_directories, strict=True):
            with translated_os_errors(path), self._headroom(scope):
                try:
                    with root.parent(path) as (directory_fd, name):
                        if is_directory:
                            clones.discard(self.layout.trash(scope), name, directory_fd)
                        else:
                            os.unlink(name, dir_fd=directory_fd)
                except (FileNotFoundError, NotADirectoryError):
                    missing_paths.append(str(path))
            self._waypoint("delete.one")
        if missing_paths:
            raise NoSuchFile(f"There is no {missing_paths[0]!r}.", data={"missing": missing_paths[:64]})

    async def open_file(self, folder: VFolderId, path: FolderPath) -> OpenFile:
        return await self._run_in_folder(folder, entries.open_file, path)

    @contextmanager
    def open_tree(self, folder: VFolderId, paths: Sequence[FolderPath]) -> Iterator[Iterator[ArchiveEntry]]:
        with self._open_folder(folder) as root:
            yield (entry for path in paths for entry in entries.walk_tree(root, path))

    async def create_upload(self, record: UploadRecord) -> None:
        def create(root: OpenDirectory) -> None:
            uploads.check_target(root, record.path)
            uploads.create(self.layout, record)

        await self._run_in_folder(record.folder, create)

    async def find_upload(self, folder: VFolderId, session: str) -> tuple[UploadRecord, int]:
        return await self._run(uploads.find, self.layout, folder, session)

    def open_upload(self, folder: VFolderId, session: str) -> Upload:
        return uploads.OpenUpload(self.layout, folder, session, self._waypoint)

    async def drop_upload(self, folder: VFolderId, session: str) -> None:
        await self._run(uploads.drop, self.layout, folder, session)

    async def uploads(self, scope: QuotaScopeId) -> Sequence[UploadRecord]:
        return await self._run(uploads.records, self.layout.scope(scope) / ".uploads")

    async def expire_uploads(self, before: float) -> int:
        def expire() -> int:
            upload_directories = (scope / ".uploads" for scope in self.layout.scopes())
            return sum(uploads.expire(directory, before) for directory in upload_directories if directory.is_dir())

        return await self._run_long(expire)

    async def _run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(
            self._short, functools.partial(function, *args, **kwargs)
        )

    async def _run_long(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(
            self._long, functools.partial(function, *args, **kwargs)
        )

    async def _run_in_folder(
        self, folder: VFolderId, function: Callable[Concatenate[OpenDirectory, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        def run() -> R:
            with self._open_folder(folder) as root:
                return function(root, *args, **kwargs)

        return await self._run(run)

    @contextmanager
    def _open_folder(self, folder: VFolderId) -> Iterator[OpenDirectory]:
        try:
            root = OpenDirectory.at(self.layout.folder(folder))
        except FileNotFoundError:
            self.layout.check_presence()
            raise FolderNotFound(data={"vfid": str(folder)}) from None
        with root:
            yield root

    def _start_purge(self, trash: Path) -> None:
        """Empties a trash in the background, in one thread for each trash."""
        if trash in self._purges:
            self._purge_again.add(trash)
        elif not self._stopping.is_set():
            self._purge_again.discard(trash)
            purge_future = self._purges[trash] = asyncio.get_running_loop().run_in_executor(
                self._long, self._empty_trash, trash
            )
            purge_future.add_done_callback(functools.partial(self._on_purged, trash))

    def _empty_trash(self, trash: Path) -> None:
        try:
            with OpenDirectory.at(trash) as root, self._headroom(trash.parent):
                fcntl.flock(root.fd, fcntl.LOCK_EX)
                trees.purge(root.fd, self._stopping)
        except FileNotFoundError:
            return
        except OSError as e:
            log.warning("%s cannot be emptied: %s", trash, e)

    def _on_purged(self, trash: Path, _: asyncio.Future[None]) -> None:
        del self._purges[trash]
        if trash in self._purge_again:
            self._start_purge(trash)
