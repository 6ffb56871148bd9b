"""Implements the ``directory`` storage: objects are files below a directory, which hosts may mount.

Only storage proxies write there, but a key is never followed through a link in its last part. An unfinished upload is
a file in ``.uploads``, named by the digest of its key; its size is the offset, and its writer holds ``flock`` on it
(docs/decisions/0081).
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import functools
import hashlib
import os
import stat
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, TypeVar

from ai.backend.common.errors import (
    InvalidInput,
    InvalidPath,
    NoSuchFile,
    ObjectStorageRefused,
    ObjectStorageUnavailable,
    StorageFull,
    UploadIsBeingWritten,
    WrongKindOfFile,
)
from ai.backend.plugin.object_storage import (
    CHUNK_BYTES,
    ObjectCapability,
    ObjectInfo,
    ObjectPage,
    ObjectStorage,
    ObjectUpload,
    StorageContext,
    check_key,
    check_prefix,
)
from ai.backend.plugin.volume import OpenFile
from ai.backend.volume.vfs.open_directory import READ_DIRECTORY_FLAGS, open_fd

P = ParamSpec("P")
R = TypeVar("R")
_UPLOADS_DIRECTORY = ".uploads"
_THREAD_COUNT = 8


@contextmanager
def _translate_errors(key: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        data = {"key": key[:256]}
        match e.errno:
            case errno.ENOENT | errno.ENOTDIR:
                raise NoSuchFile(data=data) from None
            case errno.ENOSPC | errno.EDQUOT:
                raise StorageFull(data=data) from None
            case errno.EISDIR | errno.ENOTEMPTY | errno.EEXIST:
                raise WrongKindOfFile("There are objects below that key.", data=data) from None
            case errno.ELOOP:
                raise InvalidPath("A link stands in the place of an object.", data=data) from None
            case errno.EACCES | errno.EPERM | errno.EROFS:
                raise ObjectStorageRefused(f"The storage cannot be written or read: {e.strerror}.", data=data) from None
        raise ObjectStorageUnavailable(f"The storage fails: {e.strerror}.", data=data) from e


class DirectoryStorage(ObjectStorage):
    """Stores objects as files. Options: ``path``, the directory; it is created if absent, but not its parent."""

    backend: ClassVar[str] = "directory"

    def __init__(self, name: str, options: Mapping[str, Any], context: StorageContext) -> None:
        super().__init__(name, options, context)
        path = options.get("path")
        if set(options) != {"path"} or not isinstance(path, str | os.PathLike):
            raise InvalidInput(f"object-storage.{name}: the directory backend has one setting, path.")
        self.root = Path(path).expanduser().absolute()
        self._owner = context.owner if os.geteuid() == 0 else None
        self._threads = ThreadPoolExecutor(_THREAD_COUNT, f"objects-{name}")

    @property
    def capabilities(self) -> frozenset[ObjectCapability]:
        return frozenset({ObjectCapability.MOUNT})

    async def start(self) -> None:
        try:
            await self.run(self._make_directory, self.root)
        except OSError as e:
            raise InvalidInput(f"object-storage.{self.name}: {self.root} cannot be used: {e.strerror}.") from None

    async def stop(self) -> None:
        self._threads.shutdown(wait=False)

    async def check(self) -> str | None:
        try:
            await self.run(os.stat, self.root)
        except OSError as e:
            return f"{self.root}: {e.strerror}"
        return None

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs a function in a thread; a cancelled caller waits until the function has ended.

        An upload that the function opened is then closed.
        """
        bound_call = functools.partial(function, *args, **kwargs)
        future = asyncio.get_running_loop().run_in_executor(self._threads, bound_call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait({future})
            if future.exception() is None and isinstance(upload := future.result(), _DirectoryUpload):
                upload.close_now()  # its lock would last as long as the caller's traceback
            raise

    def _path(self, key: str) -> Path:
        if check_key(key).startswith("."):
            raise InvalidPath("A key does not begin with a dot here.", data={"key": key[:256]})
        return self.root / key

    def _give_to_owner(self, path: Path) -> None:
        if self._owner is not None:
            os.chown(path, *self._owner, follow_symlinks=False)

    def _make_directory(self, directory: Path) -> None:
        """Creates a directory and its parents up to the root's parent, which must exist."""
        if directory != self.root:
            if directory.is_dir():
                return
            self._make_directory(directory.parent)
        with suppress(FileExistsError):
            directory.mkdir(mode=0o755)
            self._give_to_owner(directory)
            _sync_directory(directory.parent)
        if not directory.is_dir():
            raise NotADirectoryError(errno.EEXIST, os.strerror(errno.EEXIST), str(directory))

    async def stat(self, key: str) -> ObjectInfo:
        path = self._path(key)
        with _translate_errors(key):
            status = await self.run(os.lstat, path)
        if not stat.S_ISREG(status.st_mode):
            raise NoSuchFile(data={"key": key[:256]})
        return ObjectInfo(key, status.st_size, status.st_mtime)

    async def open_file(self, key: str) -> OpenFile:
        return await self.run(self._open, key)

    def _open(self, key: str) -> OpenFile:
        with _translate_errors(key):
            fd = os.open(self._path(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        file = OpenFile(fd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            file.close()
            raise NoSuchFile(data={"key": key[:256]})
        return file

    async def read(self, key: str, *, offset: int = 0, count: int | None = None) -> AsyncGenerator[bytes, None]:
        file = await self.open_file(key)
        try:
            remaining_bytes = file.size - offset if count is None else count
            while remaining_bytes > 0:
                with _translate_errors(key):
                    data = await self.run(os.pread, file.fd, min(CHUNK_BYTES, remaining_bytes), offset)
                if not data:
                    return
                yield data
                offset, remaining_bytes = offset + len(data), remaining_bytes - len(data)
        finally:
            file.close()

    async def list(self, prefix: str = "", *, limit: int = 1000, cursor: str | None = None) -> ObjectPage:
        return await self.run(self._list, check_prefix(prefix), limit, cursor)

    def _list(self, prefix: str, limit: int, cursor: str | None) -> ObjectPage:
        objects: list[ObjectInfo] = []
        cursor_key = (cursor or "").encode()
        with _translate_errors(prefix):
            for info in _walk(self.root, prefix, cursor_key):
                if len(objects) == limit:
                    return ObjectPage(objects, objects[-1].key)
                objects.append(info)
        return ObjectPage(objects, None)

    async def mount_path(self, prefix: str) -> Path:
        path = self._path(check_prefix(prefix).removesuffix("/"))
        if not await self.run(path.is_dir):
            raise NoSuchFile(data={"key": prefix[:256]})
        return path

    async def open_upload(self, key: str, *, size: int | None = None) -> ObjectUpload:
        with _translate_errors(key):
            return await self.run(self._open_upload, key, self._path(key))

    def _open_upload(self, key: str, path: Path) -> ObjectUpload:
        staging_path = self.root / _UPLOADS_DIRECTORY / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.data"
        self._make_directory(staging_path.parent)
        while True:
            staging_path.with_suffix(".key").write_text(key)  # first: no data without a name that finds it
            fd = os.open(staging_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            upload = _DirectoryUpload(self, key, path, staging_path, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(fd), os.stat(staging_path)):  # noqa: PTH116  # beside fstat
                    self._give_to_owner(staging_path)
                    return upload
            except BlockingIOError:
                raise UploadIsBeingWritten(data={"key": key[:256]}) from None
            except FileNotFoundError:
                continue  # it was published, or aborted, between the two calls

    async def abort_uploads(self, prefix: str) -> None:
        with _translate_errors(prefix):
            await self.run(self._abort_uploads, check_prefix(prefix))

    def _abort_uploads(self, prefix: str) -> None:
        for key_file in (self.root / _UPLOADS_DIRECTORY).glob("*.key"):
            with suppress(FileNotFoundError):
                if key_file.read_text().startswith(prefix):
                    key_file.with_suffix(".data").unlink(missing_ok=True)
                    key_file.unlink()

    async def delete(self, keys: Sequence[str]) -> None:
        object_paths = [self._path(key) for key in keys]
        for path in object_paths:
            with _translate_errors(str(path.relative_to(self.root))), suppress(FileNotFoundError, NotADirectoryError):
                await self.run(self._delete, path)

    def _delete(self, path: Path) -> None:
        path.unlink()
        self._remove_empty_parents(path.parent)

    def _remove_empty_parents(self, directory: Path) -> None:
        while directory != self.root:
            try:
                directory.rmdir()
            except OSError:
                return
            directory = directory.parent

    async def move(self, source: str, target: str) -> None:
        with _translate_errors(source):
            await self.run(self._move, self._path(source), self._path(target))

    def _move(self, source: Path, target: Path) -> None:
        if not stat.S_ISREG(os.lstat(source).st_mode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        self.put_in_place(source, target)
        self._remove_empty_parents(source.parent)

    def put_in_place(self, source: Path, target: Path) -> None:
        """Renames a file to the path of an object, durably, by syncing the directory afterwards. Blocking."""
        for _ in range(16):  # another process may prune the new directory
            self._make_directory(target.parent)
            try:
                source.rename(target)
            except FileNotFoundError:
                os.lstat(source)
                continue
            break
        _sync_directory(target.parent)


class _DirectoryUpload(ObjectUpload):
    def __init__(self, storage: DirectoryStorage, key: str, path: Path, staging_path: Path, fd: int) -> None:
        self._storage, self._key, self._path, self._staging, self._fd = storage, key, path, staging_path, fd
        self.offset = os.fstat(fd).st_size

    async def write(self, data: bytes) -> None:
        with _translate_errors(self._key):
            await self._storage.run(self._write, data)

    def _write(self, data: bytes) -> None:
        unwritten_data = memoryview(data)
        while unwritten_data:
            written_bytes = os.pwrite(self._fd, unwritten_data, self.offset)
            self.offset += written_bytes
            unwritten_data = unwritten_data[written_bytes:]

    async def publish(self) -> None:
        with _translate_errors(self._key):
            await self._storage.run(self._publish)

    def _publish(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, 0)  # a second fsync would succeed without having written it
            self.offset = 0
            raise
        self._storage.put_in_place(self._staging, self._path)
        self._staging.with_suffix(".key").unlink(missing_ok=True)
        self.close_now()

    async def close(self) -> None:
        self.close_now()

    async def abort(self) -> None:
        if self._fd >= 0:
            with _translate_errors(self._key):
                await self._storage.run(self._abort)

    def _abort(self) -> None:
        for path in (self._staging, self._staging.with_suffix(".key")):
            path.unlink(missing_ok=True)
        self.close_now()

    def close_now(self) -> None:
        """Closes the upload's file, which also releases the lock on it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close_now()


def _sync_directory(directory: Path) -> None:
    with open_fd(directory, READ_DIRECTORY_FLAGS) as fd:
        os.fsync(fd)


def _walk(root: Path, prefix: str, after_key: bytes) -> Iterator[ObjectInfo]:
    """Yields the objects below a prefix in the order of their keys' bytes, beginning after ``after_key``."""
    try:
        with os.scandir(root / prefix) as entries:
            visible_entries = [entry for entry in entries if prefix or not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return

    def sort_key(entry: os.DirEntry[str]) -> bytes:
        return os.fsencode(entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name)

    for entry in sorted(visible_entries, key=sort_key):
        key = prefix + entry.name
        if entry.is_dir(follow_symlinks=False):
            subprefix = key + "/"
            if subprefix.encode() > after_key or after_key.startswith(subprefix.encode()):
                yield from _walk(root, subprefix, after_key)
        elif entry.is_file(follow_symlinks=False) and key.encode() > after_key:
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                yield ObjectInfo(key, status.st_size, status.st_mtime)
