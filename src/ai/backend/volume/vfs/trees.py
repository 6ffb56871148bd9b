"""Counts, copies and removes whole trees by descriptors, without following links.

Depth is bounded by :data:`MAX_DEPTH` where a descriptor is held for each level; removing works at any depth.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field

from ai.backend.common.errors import Conflict
from ai.backend.node.linux.syscalls import unlock
from ai.backend.plugin.volume import FolderUsage, Progress
from ai.backend.volume.vfs.open_directory import READ_DIRECTORY_FLAGS, READ_FILE_FLAGS, open_fd

MAX_DEPTH = 256
_BLOCK_BYTES = 512
_CHANGED_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors for a name that was removed or replaced since the directory was read."""
_COPY_CHUNK_BYTES = 1 << 26
_BUFFER_BYTES = 1 << 20


class Cancelled(Exception):
    """Raised by a progress callback to cancel the copy or removal of a tree."""


def _open_subdirectory(name: str, parent_fd: int) -> AbstractContextManager[int]:
    return open_fd(name, READ_DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=parent_fd)


def walk(fd: int, depth: int = 0) -> Iterator[tuple[int, str, os.stat_result]]:
    """Yields each entry below a directory as (descriptor of its parent, name, status).

    Entries that vanish meanwhile are left out. Raises Conflict: it is deeper than :data:`MAX_DEPTH`, or a directory is
    not readable.
    """
    if depth > MAX_DEPTH:
        raise Conflict(f"There are directories more than {MAX_DEPTH} levels deep.")
    with os.scandir(fd) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            yield fd, entry.name, status
            if stat.S_ISDIR(status.st_mode):
                try:
                    with _open_subdirectory(entry.name, fd) as child_fd:
                        yield from walk(child_fd, depth + 1)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                except PermissionError:
                    raise Conflict("A directory is closed to the storage proxy.", data={"name": entry.name}) from None


def measure(fd: int) -> FolderUsage:
    """Counts the files and bytes of a folder, without the folder's own entry."""
    files = blocks = 0
    seen_inodes: set[tuple[int, int]] = set()
    for _, _, status in walk(fd):
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            if (status.st_dev, status.st_ino) in seen_inodes:
                continue
            seen_inodes.add((status.st_dev, status.st_ino))
        files += not stat.S_ISDIR(status.st_mode)
        blocks += status.st_blocks
    return FolderUsage(files, blocks * _BLOCK_BYTES)


@dataclass(slots=True)
class _CopyJob:
    """Holds the state of a tree's copy under way: target root, progress, callbacks, and the hard links seen.

    ``first_paths`` maps a source file with several names to its path in the copy.
    """

    root: int
    progress: Progress
    give_to_owner: Callable[[int], None]
    waypoint: Callable[[str], None]
    first_paths: dict[tuple[int, ...], str] = field(default_factory=dict)


def copy(
    source_fd: int,
    target_fd: int,
    progress: Progress,
    *,
    give_to_owner: Callable[[int], None],
    waypoint: Callable[[str], None],
) -> None:
    """Copies the content of a directory into an empty one; devices, sockets and FIFOs are skipped and counted.

    A file with several names has them in the copy too, and takes room once, as it was measured. Raises Cancelled: the
    progress was cancelled; OSError: among others ENOSPC; a part of the copy exists.
    """
    _copy_directory(_CopyJob(target_fd, progress, give_to_owner, waypoint), source_fd, target_fd, ())


def _copy_directory(job: _CopyJob, source_fd: int, target_fd: int, path: tuple[str, ...]) -> None:
    if len(path) > MAX_DEPTH:
        raise Conflict(f"There are directories more than {MAX_DEPTH} levels deep.")
    with os.scandir(source_fd) as entries:
        for entry in entries:
            if job.progress.is_cancelled:
                raise Cancelled
            try:
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    with _open_subdirectory(entry.name, source_fd) as source_child_fd:
                        os.mkdir(entry.name, 0o700, dir_fd=target_fd)
                        with _open_subdirectory(entry.name, target_fd) as target_child_fd:
                            _copy_directory(job, source_child_fd, target_child_fd, (*path, entry.name))
                            _apply_metadata(target_child_fd, os.fstat(source_child_fd), job.give_to_owner)
                elif stat.S_ISREG(mode):
                    _copy_file(job, source_fd, target_fd, (*path, entry.name))
                    job.waypoint("clone.file")
                elif stat.S_ISLNK(mode):
                    _copy_link(source_fd, target_fd, entry.name)
                    job.progress.files += 1
                else:
                    job.progress.skipped += 1
            except OSError as e:
                if e.errno not in _CHANGED_ERRNOS:
                    raise


def _copy_link(source_fd: int, target_fd: int, name: str) -> None:
    try:
        link_target = os.readlink(name, dir_fd=source_fd)
    except OSError as e:
        if e.errno != errno.EINVAL:
            raise
        raise FileNotFoundError(errno.ENOENT, "it is no link any more", name) from None
    os.symlink(link_target, name, dir_fd=target_fd)


def _copy_file(job: _CopyJob, source_fd: int, target_fd: int, path: tuple[str, ...]) -> None:
    name, progress = path[-1], job.progress
    with open_fd(name, READ_FILE_FLAGS | os.O_NOFOLLOW, dir_fd=source_fd) as reader_fd:
        status = os.fstat(reader_fd)
        if not stat.S_ISREG(status.st_mode):
            progress.skipped += 1
            return
        if status.st_nlink > 1:
            # Size and time tell a file from another one that got the number of a removed one meanwhile.
            identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            if (first_path := job.first_paths.setdefault(identity, "/".join(path))) != "/".join(path):
                os.link(first_path, name, src_dir_fd=job.root, dst_dir_fd=target_fd)
                progress.files += 1
                return
        with open_fd(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=target_fd) as writer_fd:
            _copy_data(reader_fd, writer_fd, status.st_size, progress)
            _apply_metadata(writer_fd, status, job.give_to_owner)
            progress.files += 1


def _copy_data(reader_fd: int, writer_fd: int, size: int, progress: Progress) -> None:
    """Copies the data, sharing blocks if the file system can; holes stay holes."""
    os.ftruncate(writer_fd, size)
    offset = 0
    while offset < size:
        try:
            offset = os.lseek(reader_fd, offset, os.SEEK_DATA)
            end_offset = min(os.lseek(reader_fd, offset, os.SEEK_HOLE), size)
        except OSError as e:
            if e.errno == errno.ENXIO:
                return
            raise
        while offset < end_offset:
            if progress.is_cancelled:
                raise Cancelled
            byte_count = _copy_bytes(reader_fd, writer_fd, offset, min(end_offset - offset, _COPY_CHUNK_BYTES))
            if byte_count == 0:
                return  # it was cut short meanwhile
            offset += byte_count
            progress.current += byte_count


def _copy_bytes(reader_fd: int, writer_fd: int, offset: int, byte_count: int) -> int:
    try:
        return os.copy_file_range(reader_fd, writer_fd, byte_count, offset, offset)
    except OSError as e:
        if e.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    data = os.pread(reader_fd, min(byte_count, _BUFFER_BYTES), offset)
    written_bytes = 0
    while written_bytes < len(data):
        written_bytes += os.pwrite(writer_fd, data[written_bytes:], offset + written_bytes)
    return written_bytes


def _apply_metadata(fd: int, source_status: os.stat_result, give_to_owner: Callable[[int], None]) -> None:
    give_to_owner(fd)
    os.fchmod(fd, source_status.st_mode & 0o777)
    os.utime(fd, ns=(source_status.st_atime_ns, source_status.st_mtime_ns))


def purge(trash_fd: int, stop: threading.Event) -> None:
    """Removes everything in a directory, at any depth and in constant memory.

    Subdirectories are moved to the top first, so that no path gets long and no descriptor is held for each level.
    May be killed at any point or run twice at once. Ends early when nothing can be removed any more.
    """
    moved_count = 1
    while moved_count:
        moved_count = 0
        with os.scandir(trash_fd) as entries:
            for entry in entries:
                if stop.is_set():
                    return
                with suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        moved_count += _flatten(trash_fd, entry.name)
                    else:
                        os.unlink(entry.name, dir_fd=trash_fd)
                        moved_count += 1


def _flatten(trash_fd: int, name: str) -> int:
    """Removes one directory of the trash, after moving its subdirectories to the top of the trash.

    Returns the number of entries handled.
    """
    unlock(trash_fd, name)
    moved_count = 0
    with _open_subdirectory(name, trash_fd) as fd, os.scandir(fd) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    unlock(fd, entry.name)
                    os.rename(entry.name, secrets.token_hex(16), src_dir_fd=fd, dst_dir_fd=trash_fd)
                else:
                    os.unlink(entry.name, dir_fd=fd)
                moved_count += 1
    try:
        os.rmdir(name, dir_fd=trash_fd)
    except OSError as e:
        if e.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return moved_count  # another process adds to it: the next round removes it
    return moved_count + 1
