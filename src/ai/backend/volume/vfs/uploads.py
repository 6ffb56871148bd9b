"""Uploads on a volume: their received data and their target.

An upload is two files in its scope: the record ``<session>.json`` and the received bytes ``<session>.data``, whose size
is the offset, so a killed proxy resumes at the right byte. A writer holds a lock on the data (flock), which ends with
its process and excludes other proxies on the same volume. The data is created before the record and removed after it,
and publishing renames it away: a record without data is a completed upload. See docs/decisions/0081.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

import msgspec

from ai.backend.common.errors import FolderNotFound, UploadIsBeingWritten, UploadNotFound, WrongKindOfFile
from ai.backend.common.volume_paths import FolderPath, VFolderId
from ai.backend.node.linux.open_beneath import WALK
from ai.backend.node.linux.syscalls import start_writeback
from ai.backend.plugin.volume import Upload, UploadRecord, UploadState
from ai.backend.volume.vfs.layout import Layout
from ai.backend.volume.vfs.open_directory import READ_DIRECTORY, OpenDirectory, refusals

_WRITEBACK_BYTES = 1 << 25
"""Written data is flushed in pieces of this size, so that the final fsync is short."""
_PIPE_BYTES = 1 << 20  # what the kernel lets any user have (pipe(7))
_SPLICE_F_NONBLOCK = 2
_SESSION = re.compile(r"[0-9a-f]{16,64}")


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    path: str
    size: int
    held_at: int | None = None
    """The data after this position does not count."""


_decode = msgspec.json.Decoder(_Stored).decode


def _directory(layout: Layout, folder: VFolderId) -> str:
    return f"{layout.root}/{folder.scope.id.hex}/.uploads"


def _store(room: str, session: str, stored: _Stored) -> None:
    temporary = f"{room}/{session}.tmp"
    with open(temporary, "wb") as file:  # noqa: PTH123  # one of these for each small file
        file.write(msgspec.json.encode(stored))
    os.rename(temporary, f"{room}/{session}.json")  # noqa: PTH104  # as above


def _load(room: str, session: str) -> _Stored:
    try:
        with open(f"{room}/{session}.json", "rb") as file:  # noqa: PTH123  # as above
            return _decode(file.read())
    except (FileNotFoundError, msgspec.MsgspecError):
        raise UploadNotFound from None


def _record(session: str, folder: VFolderId, stored: _Stored, *, is_done: bool) -> UploadRecord:
    if stored.folder != str(folder):
        raise UploadNotFound
    state = UploadState.DONE if is_done else UploadState.OPEN
    path = FolderPath.parse(stored.path)
    return UploadRecord(session=session, folder=folder, path=path, size=stored.size, state=state)


def create(layout: Layout, record: UploadRecord) -> None:
    """Creates the data file and the record of an upload."""
    if _SESSION.fullmatch(record.session) is None:
        raise UploadNotFound
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with refusals():
        room = str(layout.hidden(record.folder.scope, ".uploads"))
        fd = os.open(f"{room}/{record.session}.data", flags, 0o644)
        try:
            os.fchmod(fd, 0o644)
            layout.give(fd)
        finally:
            os.close(fd)
        try:
            _store(room, record.session, _Stored(folder=str(record.folder), path=str(record.path), size=record.size))
        except OSError:
            for kind in ("tmp", "data"):
                Path(f"{room}/{record.session}.{kind}").unlink(missing_ok=True)
            raise


def find(layout: Layout, folder: VFolderId, session: str) -> tuple[UploadRecord, int]:
    """Returns the present record and the offset."""
    if _SESSION.fullmatch(session) is None:
        raise UploadNotFound
    room = _directory(layout, folder)
    stored = _load(room, session)
    try:
        size = os.stat(f"{room}/{session}.data").st_size  # noqa: PTH116  # as above
    except FileNotFoundError:
        stored = _load(room, session)  # it may have been dropped just now
        return _record(session, folder, stored, is_done=True), stored.size
    record = _record(session, folder, stored, is_done=False)
    return record, size if stored.held_at is None else min(size, stored.held_at)


def records(room: Path) -> list[UploadRecord]:
    """Returns the uploads of one scope; unreadable records are ignored."""
    uploads = []
    for path in sorted(room.glob("*.json")):
        with suppress(UploadNotFound):
            stored = _load(str(room), path.stem)
            is_done = not path.with_suffix(".data").exists()
            uploads.append(_record(path.stem, VFolderId.parse(stored.folder), stored, is_done=is_done))
    return uploads


def drop(layout: Layout, folder: VFolderId, session: str) -> None:
    with OpenUpload(layout, folder, session) as upload:
        upload.discard()


def expire(room: Path, before: float) -> int:
    """Removes the files of abandoned uploads and returns their number; a file that is being written is recent."""
    count = 0
    for session in {p.stem for p in room.iterdir()}:
        files = [room / f"{session}.{kind}" for kind in ("json", "data", "tmp")]  # the record first
        ages = [p.stat().st_mtime for p in files if p.exists()]
        if ages and max(ages) < before:
            count += 1
            for path in files:
                path.unlink(missing_ok=True)
    return count


class OpenUpload(Upload):
    """Writes one upload, see :class:`Upload`. Opening takes the lock."""

    def __init__(
        self, layout: Layout, folder: VFolderId, session: str, waypoint: Callable[[str], None] = lambda _: None
    ) -> None:
        self._fd = -1
        self._pipe: tuple[int, int] | None = None
        if _SESSION.fullmatch(session) is None:
            raise UploadNotFound
        self._layout, self._session, self._waypoint = layout, session, waypoint
        self._room = _directory(layout, folder)
        self._data = f"{self._room}/{session}.data"
        self._fd = self._lock()
        try:
            self._stored = _load(self._room, session)
            self.record = _record(session, folder, self._stored, is_done=self._fd < 0)
            self.offset = self.record.size if self._fd < 0 else self._truncate()
            self._flushed = self.offset
        except BaseException:
            self.close()
            raise

    def _lock(self) -> int:
        try:
            fd = os.open(self._data, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return -1
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(self._data).st_ino == os.fstat(fd).st_ino:  # noqa: PTH116  # as above
                return fd
        except BlockingIOError:
            os.close(fd)
            raise UploadIsBeingWritten from None
        except FileNotFoundError:
            pass
        os.close(fd)
        return -1

    def _truncate(self) -> int:
        """Removes bytes that do not count since a crash; returns the offset."""
        if self._stored.held_at is not None:
            size = os.fstat(self._fd).st_size
            os.ftruncate(self._fd, min(size, self._stored.held_at))
            self._hold(None)
        return os.lseek(self._fd, 0, os.SEEK_END)

    def _hold(self, at: int | None) -> None:
        self._stored = msgspec.structs.replace(self._stored, held_at=at)
        with refusals():
            _store(self._room, self._session, self._stored)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        with refusals():
            while view:
                count = os.write(self._fd, view)
                view = view[count:]
                self._grow(count)

    def _grow(self, count: int) -> None:
        self.offset += count
        if self.offset - self._flushed >= _WRITEBACK_BYTES:
            start_writeback(self._fd, self._flushed, self.offset - self._flushed)
            self._flushed = self.offset
        self._waypoint("upload.written")

    def receive(self, fd: int, count: int) -> int:
        """Writes through a pipe, so that bytes are copied once (splice(2)), or as usual if that is not supported."""
        if self._pipe is None:
            self._pipe = os.pipe2(os.O_CLOEXEC)
            with suppress(OSError):  # a user's pipes may be bounded together
                fcntl.fcntl(self._pipe[1], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        source, target = self._pipe
        try:
            received = remaining = os.splice(fd, target, min(count, _PIPE_BYTES), flags=_SPLICE_F_NONBLOCK)
        except OSError as e:
            if e.errno != errno.EINVAL:
                raise
            return super().receive(fd, count)
        with refusals():
            while remaining:
                try:
                    count = os.splice(source, self._fd, remaining)
                except OSError as e:
                    if e.errno != errno.EINVAL:
                        raise
                    data = os.read(source, remaining)
                    self.write(data)
                    count = len(data)
                else:
                    self._grow(count)
                remaining -= count
        return received

    def hold(self) -> None:
        self._hold(self.offset)

    def count(self) -> None:
        self._hold(None)

    def publish(self, path: FolderPath) -> None:
        if self.record.state == UploadState.DONE:
            return
        with refusals(path):
            self._sync()
            self._waypoint("upload.synced")
            try:
                folder = OpenDirectory.at(self._layout.folder(self.record.folder))
            except FileNotFoundError:
                raise FolderNotFound from None
            with folder:
                try:
                    self._rename(folder, path)
                except FileNotFoundError:
                    make_parents(self._layout, folder, path)
                    self._rename(folder, path)
        self.record = replace(self.record, state=UploadState.DONE)

    def _sync(self) -> None:
        """Starts again from nothing after a failed fsync, because a second one may succeed although data is lost."""
        try:
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, 0)
            self.offset = os.lseek(self._fd, 0, os.SEEK_SET)
            raise

    def _rename(self, folder: OpenDirectory, path: FolderPath) -> None:
        with folder.parent(path, READ_DIRECTORY) as (directory, name):
            try:
                os.rename(self._data, name, dst_dir_fd=directory)
            except (IsADirectoryError, NotADirectoryError):
                raise WrongKindOfFile("There is a directory of that name.") from None
            self._waypoint("upload.renamed")
            os.fsync(directory)

    def discard(self) -> None:
        """Removes the upload."""
        for kind in ("json", "data"):
            Path(f"{self._room}/{self._session}.{kind}").unlink(missing_ok=True)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        for fd in self._pipe or ():
            os.close(fd)
        self._pipe = None

    def __del__(self) -> None:
        self.close()  # its opener may have been cancelled before it got the value; the lock must not stay

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_parents(layout: Layout, folder: OpenDirectory, path: FolderPath) -> None:
    """Creates the missing parent directories of a path."""
    for depth in range(1, len(path.parts)):
        make_directory(layout, folder, FolderPath(path.parts[:depth]))


def make_directory(layout: Layout, folder: OpenDirectory, path: FolderPath) -> bool:
    """Creates a directory; returns False if it existed. Raises WrongKindOfFile for another file, else OSError."""
    with folder.parent(path) as (directory, name):
        try:
            os.mkdir(name, 0o755, dir_fd=directory)
        except FileExistsError:
            try:
                os.close(folder.open(path, WALK))
            except (NotADirectoryError, FileNotFoundError):
                raise WrongKindOfFile(f"{name!r} is there, and is no directory.") from None
            return False
        if layout.owner is not None:
            os.chown(name, *layout.owner, dir_fd=directory, follow_symlinks=False)
    return True


def check_target(folder: OpenDirectory, path: FolderPath) -> None:
    """Raises WrongKindOfFile or InvalidPath unless an upload can become this file at present."""
    if not path.parts:
        raise WrongKindOfFile("That is the folder itself.")
    with refusals(path):
        try:
            for depth in range(1, len(path.parts)):
                os.close(folder.open(FolderPath(path.parts[:depth]), WALK))
        except FileNotFoundError:
            return
        try:
            os.close(folder.open(path, WALK | os.O_NOFOLLOW))
        except (FileNotFoundError, NotADirectoryError):
            return
    raise WrongKindOfFile("There is a directory of that name.")
