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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from ai.backend.common.errors import Conflict
from ai.backend.node.linux.syscalls import unlock
from ai.backend.plugin.volume import FolderUsage, Progress
from ai.backend.volume.vfs.open_directory import READ_DIRECTORY, READ_FILE

MAX_DEPTH = 256
_BLOCK = 512
_CHANGED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors for a name that was removed or replaced since the directory was read."""
_COPY_BYTES = 1 << 26
_BUFFER_BYTES = 1 << 20


class Cancelled(Exception):
    """Raised by a progress callback to cancel the work."""


@contextmanager
def _directory(name: str, parent: int) -> Iterator[int]:
    fd = os.open(name, READ_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def walk(fd: int, depth: int = 0) -> Iterator[tuple[int, str, os.stat_result]]:
    """Yields the parent's descriptor, name and status of everything below a directory that does not vanish meanwhile.
    Raises Conflict: it is deeper than :data:`MAX_DEPTH`, or a directory is not readable."""
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
                    with _directory(entry.name, fd) as below:
                        yield from walk(below, depth + 1)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                except PermissionError:
                    raise Conflict("A directory is closed to the storage proxy.", data={"name": entry.name}) from None


def measure(fd: int) -> FolderUsage:
    """Counts the files and bytes of a folder, without the folder's own entry."""
    files = blocks = 0
    seen: set[tuple[int, int]] = set()
    for _, _, status in walk(fd):
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
        files += not stat.S_ISDIR(status.st_mode)
        blocks += status.st_blocks
    return FolderUsage(files, blocks * _BLOCK)


@dataclass(slots=True)
class _Work:
    """A copy under way. ``names`` maps a source file with several names to its path in the copy."""

    root: int
    progress: Progress
    give: Callable[[int], None]
    waypoint: Callable[[str], None]
    names: dict[tuple[int, ...], str] = field(default_factory=dict)


def copy(
    source: int, target: int, progress: Progress, *, give: Callable[[int], None], waypoint: Callable[[str], None]
) -> None:
    """Copies the content of a directory into an empty one; devices, sockets and FIFOs are skipped and counted.

    A file with several names has them in the copy too, and takes room once, as it was measured. Raises Cancelled: the
    progress was cancelled; OSError: among others ENOSPC; a part of the copy exists.
    """
    _copy_directory(_Work(target, progress, give, waypoint), source, target, ())


def _copy_directory(work: _Work, source: int, target: int, path: tuple[str, ...]) -> None:
    if len(path) > MAX_DEPTH:
        raise Conflict(f"There are directories more than {MAX_DEPTH} levels deep.")
    with os.scandir(source) as entries:
        for entry in entries:
            if work.progress.is_cancelled:
                raise Cancelled
            try:
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    with _directory(entry.name, source) as below:
                        os.mkdir(entry.name, 0o700, dir_fd=target)
                        with _directory(entry.name, target) as made:
                            _copy_directory(work, below, made, (*path, entry.name))
                            _finish(made, os.fstat(below), work.give)
                elif stat.S_ISREG(mode):
                    _copy_file(work, source, target, (*path, entry.name))
                    work.waypoint("clone.file")
                elif stat.S_ISLNK(mode):
                    _copy_link(source, target, entry.name)
                    work.progress.files += 1
                else:
                    work.progress.skipped += 1
            except OSError as e:
                if e.errno not in _CHANGED:
                    raise


def _copy_link(source: int, target: int, name: str) -> None:
    try:
        link = os.readlink(name, dir_fd=source)
    except OSError as e:
        if e.errno != errno.EINVAL:
            raise
        raise FileNotFoundError(errno.ENOENT, "it is no link any more", name) from None
    os.symlink(link, name, dir_fd=target)


def _copy_file(work: _Work, source: int, target: int, path: tuple[str, ...]) -> None:
    name, progress = path[-1], work.progress
    reader = os.open(name, READ_FILE | os.O_NOFOLLOW, dir_fd=source)
    try:
        status = os.fstat(reader)
        if not stat.S_ISREG(status.st_mode):
            progress.skipped += 1
            return
        if status.st_nlink > 1:
            # Size and time tell a file from another one that got the number of a removed one meanwhile.
            identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            if (first := work.names.setdefault(identity, "/".join(path))) != "/".join(path):
                os.link(first, name, src_dir_fd=work.root, dst_dir_fd=target)
                progress.files += 1
                return
        writer = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=target)
        try:
            _copy_data(reader, writer, status.st_size, progress)
            _finish(writer, status, work.give)
            progress.files += 1
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _copy_data(reader: int, writer: int, size: int, progress: Progress) -> None:
    """Copies the data, sharing blocks if the file system can; holes stay holes."""
    os.ftruncate(writer, size)
    at = 0
    while at < size:
        try:
            at = os.lseek(reader, at, os.SEEK_DATA)
            end = min(os.lseek(reader, at, os.SEEK_HOLE), size)
        except OSError as e:
            if e.errno == errno.ENXIO:
                return
            raise
        while at < end:
            if progress.is_cancelled:
                raise Cancelled
            count = _copy_some(reader, writer, at, min(end - at, _COPY_BYTES))
            if count == 0:
                return  # it was cut short meanwhile
            at += count
            progress.current += count


def _copy_some(reader: int, writer: int, at: int, count: int) -> int:
    try:
        return os.copy_file_range(reader, writer, count, at, at)
    except OSError as e:
        if e.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    data = os.pread(reader, min(count, _BUFFER_BYTES), at)
    done = 0
    while done < len(data):
        done += os.pwrite(writer, data[done:], at + done)
    return done


def _finish(fd: int, like: os.stat_result, give: Callable[[int], None]) -> None:
    give(fd)
    os.fchmod(fd, like.st_mode & 0o777)
    os.utime(fd, ns=(like.st_atime_ns, like.st_mtime_ns))


def purge(trash: int, stop: threading.Event) -> None:
    """Removes everything in a directory, at any depth and in constant memory.

    Subdirectories are moved to the top first, so that no path gets long and no descriptor is held for each level.
    May be killed at any point or run twice at once. Ends early when nothing can be removed any more.
    """
    moved = 1
    while moved:
        moved = 0
        with os.scandir(trash) as entries:
            for entry in entries:
                if stop.is_set():
                    return
                with suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        moved += _flatten(trash, entry.name)
                    else:
                        os.unlink(entry.name, dir_fd=trash)
                        moved += 1


def _flatten(trash: int, name: str) -> int:
    """Removes a directory of the trash, moving its subdirectories up; returns the number of entries handled."""
    unlock(trash, name)
    moved = 0
    with _directory(name, trash) as fd, os.scandir(fd) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    unlock(fd, entry.name)
                    os.rename(entry.name, secrets.token_hex(16), src_dir_fd=fd, dst_dir_fd=trash)
                else:
                    os.unlink(entry.name, dir_fd=fd)
                moved += 1
    try:
        os.rmdir(name, dir_fd=trash)
    except OSError as e:
        if e.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return moved  # another process adds to it: the next round removes it
    return moved + 1
