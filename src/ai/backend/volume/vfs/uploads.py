"""Stores the uploads of a volume, each as a file of received bytes and a record of its target.

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
from pathlib import Path
from typing import Self

import msgspec

from ai.backend.common.errors import FolderNotFound, UploadIsBeingWritten, UploadNotFound, WrongKindOfFile
from ai.backend.common.structs import replace
from ai.backend.common.volume_paths import FolderPath, VFolderId
from ai.backend.node.linux.open_beneath import WALK
from ai.backend.node.linux.syscalls import start_writeback
from ai.backend.plugin.volume import Upload, UploadRecord, UploadState
from ai.backend.volume.vfs.layout import Layout
from ai.backend.volume.vfs.open_directory import READ_DIRECTORY_FLAGS, OpenDirectory, open_fd, translated_os_errors

_WRITEBACK_BYTES = 1 << 24
"""Written data is flushed in pieces of this size, so that the final fsync is short."""
_PIPE_BYTES = 1 << 20  # what the kernel lets any user have (pipe(7))
_SPLICE_F_NONBLOCK = 2
_SESSION_PATTERN = re.compile(r"[0-9a-f]{16,64}")


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    path: str
    size: int
    held_at: int | None = None
    """The position after which data does not count."""


_decode_record = msgspec.json.Decoder(_Record).decode


def _uploads_directory(layout: Layout, folder: VFolderId) -> str:
    return f"{layout.root}/{folder.scope.id.hex}/.uploads"


def _write_record(uploads_dir: str, session: str, stored_record: _Record) -> None:
    temporary_path = f"{uploads_dir}/{session}.tmp"
    with open(temporary_path, "wb") as file:  # noqa: PTH123  # one of these for each small file
        file.write(msgspec.json.encode(stored_record))
    os.rename(temporary_path, f"{uploads_dir}/{session}.json")  # noqa: PTH104  # as above


def _read_record(uploads_dir: str, session: str) -> _Record:
    try:
        with open(f"{uploads_dir}/{session}.json", "rb") as file:  # noqa: PTH123  # as above
            return _decode_record(file.read())
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        raise UploadNotFound from None


def _upload_record(session: str, folder: VFolderId, stored_record: _Record, *, is_done: bool) -> UploadRecord:
    if stored_record.folder != str(folder):
        raise UploadNotFound
    state = UploadState.DONE if is_done else UploadState.OPEN
    path = FolderPath.parse(stored_record.path)
    return UploadRecord(session=session, folder=folder, path=path, size=stored_record.size, state=state)


def create(layout: Layout, record: UploadRecord) -> None:
    """Creates the data file and the record of an upload."""
    if _SESSION_PATTERN.fullmatch(record.session) is None:
        raise UploadNotFound
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with translated_os_errors():
        uploads_dir = str(layout.hidden_directory(record.folder.scope, ".uploads"))
        with open_fd(f"{uploads_dir}/{record.session}.data", flags, 0o644) as fd:
            os.fchmod(fd, 0o644)
            layout.give_to_owner(fd)
        try:
            _write_record(
                uploads_dir, record.session, _Record(folder=str(record.folder), path=str(record.path), size=record.size)
            )
        except OSError:
            for suffix in ("tmp", "data"):
                Path(f"{uploads_dir}/{record.session}.{suffix}").unlink(missing_ok=True)
            raise


def find(layout: Layout, folder: VFolderId, session: str) -> tuple[UploadRecord, int]:
    """Returns the present record of an upload, and the number of bytes received."""
    if _SESSION_PATTERN.fullmatch(session) is None:
        raise UploadNotFound
    uploads_dir = _uploads_directory(layout, folder)
    stored_record = _read_record(uploads_dir, session)
    try:
        size = os.stat(f"{uploads_dir}/{session}.data").st_size  # noqa: PTH116  # as above
    except FileNotFoundError:
        stored_record = _read_record(uploads_dir, session)  # it may have been dropped just now
        return _upload_record(session, folder, stored_record, is_done=True), stored_record.size
    record = _upload_record(session, folder, stored_record, is_done=False)
    return record, size if stored_record.held_at is None else min(size, stored_record.held_at)


def records(uploads_dir: Path) -> list[UploadRecord]:
    """Returns the uploads of one scope; unreadable records are ignored."""
    uploads = []
    for path in sorted(uploads_dir.glob("*.json")):
        with suppress(UploadNotFound):
            stored_record = _read_record(str(uploads_dir), path.stem)
            is_done = not path.with_suffix(".data").exists()
            uploads.append(
                _upload_record(path.stem, VFolderId.parse(stored_record.folder), stored_record, is_done=is_done)
            )
    return uploads


def drop(layout: Layout, folder: VFolderId, session: str) -> None:
    with OpenUpload(layout, folder, session) as upload:
        upload.discard()


def expire(uploads_dir: Path, before_time: float) -> int:
    """Removes the files of uploads that were not written since ``before_time``; returns the number of removed uploads.

    A file that is being written is recent.
    """
    removed_count = 0
    for session in {file.stem for file in uploads_dir.iterdir()}:
        files = [uploads_dir / f"{session}.{suffix}" for suffix in ("json", "data", "tmp")]  # the record first
        modified_times = [file.stat().st_mtime for file in files if file.exists()]
        if modified_times and max(modified_times) < before_time:
            removed_count += 1
            for path in files:
                path.unlink(missing_ok=True)
    return removed_count


class OpenUpload(Upload):
    """Receives the bytes of one upload under the upload's lock, see :class:`Upload`.

    Opening takes the lock.
    """

    def __init__(
        self, layout: Layout, folder: VFolderId, session: str, waypoint: Callable[[str], None] = lambda _: None
    ) -> None:
        self._fd = -1
        self._pipe: tuple[int, int] | None = None
        if _SESSION_PATTERN.fullmatch(session) is None:
            raise UploadNotFound
        self._layout, self._session, self._waypoint = layout, session, waypoint
        self._uploads_dir = _uploads_directory(layout, folder)
        self._data = f"{self._uploads_dir}/{session}.data"
        self._fd = self._lock()
        try:
            self._stored = _read_record(self._uploads_dir, session)
            self.record = _upload_record(session, folder, self._stored, is_done=self._fd < 0)
            self.offset = self.record.size if self._fd < 0 else self._truncate()
            # The client's next chunks are other openings: each goes on where the one before it has left the writeback.
            self._flushed = self.offset - self.offset % _WRITEBACK_BYTES
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
        """Removes the bytes that a crash left after the recorded position, and returns the upload's offset."""
        if self._stored.held_at is not None:
            size = os.fstat(self._fd).st_size
            os.ftruncate(self._fd, min(size, self._stored.held_at))
            self._set_hold(None)
        return os.lseek(self._fd, 0, os.SEEK_END)

    def _set_hold(self, position: int | None) -> None:
        self._stored = replace(self._stored, held_at=position)
        with translated_os_errors():
            _write_record(self._uploads_dir, self._session, self._stored)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        unwritten_data = memoryview(data)
        with translated_os_errors():
            while unwritten_data:
                written_bytes = os.write(self._fd, unwritten_data)
                unwritten_data = unwritten_data[written_bytes:]
                self._grow(written_bytes)

    def _grow(self, byte_count: int) -> None:
        self.offset += byte_count
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
        pipe_read_fd, pipe_write_fd = self._pipe
        try:
            received_bytes = unwritten_bytes = os.splice(
                fd, pipe_write_fd, min(count, _PIPE_BYTES), flags=_SPLICE_F_NONBLOCK
            )
        except OSError as e:
            if e.errno != errno.EINVAL:
                raise
            return super().receive(fd, count)
        with translated_os_errors():
            while unwritten_bytes:
                try:
                    count = os.splice(pipe_read_fd, self._fd, unwritten_bytes)
                except OSError as e:
                    if e.errno != errno.EINVAL:
                        raise
                    data = os.read(pipe_read_fd, unwritten_bytes)
                    self.write(data)
                    count = len(data)
                else:
                    self._grow(count)
                unwritten_bytes -= count
        return received_bytes

    def hold(self) -> None:
        self._set_hold(self.offset)

    def count(self) -> None:
        self._set_hold(None)

    def publish(self, path: FolderPath) -> None:
        if self.record.state == UploadState.DONE:
            return
        with translated_os_errors(path):
            self._sync_data()
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

    def _sync_data(self) -> None:
        """Syncs the data; discards all of it after a failed fsync, since a second fsync may succeed without it."""
        try:
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, 0)
            self.offset = os.lseek(self._fd, 0, os.SEEK_SET)
            raise

    def _rename(self, folder: OpenDirectory, path: FolderPath) -> None:
        with folder.parent(path, READ_DIRECTORY_FLAGS) as (parent_fd, name):
            try:
                os.rename(self._data, name, dst_dir_fd=parent_fd)
            except (IsADirectoryError, NotADirectoryError):
                raise WrongKindOfFile("There is a directory of that name.") from None
            self._waypoint("upload.renamed")
            os.fsync(parent_fd)

    def discard(self) -> None:
        """Removes the files of the upload."""
        for suffix in ("json", "data"):
            Path(f"{self._uploads_dir}/{self._session}.{suffix}").unlink(missing_ok=True)

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
    """Creates the missing parent directories of an upload's path."""
    for depth in range(1, len(path.parts)):
        make_directory(layout, folder, FolderPath(path.parts[:depth]))


def make_directory(layout: Layout, folder: OpenDirectory, path: FolderPath) -> bool:
    """Creates a directory; returns False if it existed. Raises WrongKindOfFile for another file, else OSError."""
    with folder.parent(path) as (parent_fd, name):
        try:
            os.mkdir(name, 0o755, dir_fd=parent_fd)
        except FileExistsError:
            try:
                os.close(folder.open(path, WALK))
            except (NotADirectoryError, FileNotFoundError):
                raise WrongKindOfFile(f"{name!r} is there, and is no directory.") from None
            return False
        if layout.owner is not None:
            os.chown(name, *layout.owner, dir_fd=parent_fd, follow_symlinks=False)
    return True


def check_target(folder: OpenDirectory, path: FolderPath) -> None:
    """Raises WrongKindOfFile or InvalidPath if a file cannot be put at this path of a folder at present."""
    if not path.parts:
        raise WrongKindOfFile("That is the folder itself.")
    with translated_os_errors(path):
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
