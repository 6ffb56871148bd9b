"""Lists and opens the entries of a folder, while others may change them."""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Iterator

from ai.backend.common.errors import InvalidInput, WrongKindOfFile
from ai.backend.common.volume_paths import MAX_PATH_BYTES, FolderPath
from ai.backend.node.linux.syscalls import read_directory
from ai.backend.plugin.volume import ArchiveEntry, FileEntry, FileKind, OpenFile, Page
from ai.backend.volume.vfs import trees
from ai.backend.volume.vfs.open_directory import (
    READ_DIRECTORY_FLAGS,
    READ_FILE_FLAGS,
    OpenDirectory,
    translated_os_errors,
)

_FILE_KINDS = {stat.S_IFREG: FileKind.FILE, stat.S_IFDIR: FileKind.DIRECTORY, stat.S_IFLNK: FileKind.SYMBOLIC_LINK}


def _printable_name(name: str) -> str:
    """Returns a name in a form that JSON can represent."""
    return os.fsencode(name).decode("utf-8", "replace")


def _file_entry(name: str, status: os.stat_result, target: str = "") -> FileEntry:
    return FileEntry(
        name=_printable_name(name),
        kind=_FILE_KINDS.get(stat.S_IFMT(status.st_mode), FileKind.OTHER),
        mode=status.st_mode,
        size=status.st_size,
        created=status.st_ctime,
        modified=status.st_mtime,
        accessed=status.st_atime,
        symlink_target=_printable_name(target),
    )


def list_directory(root: OpenDirectory, path: FolderPath, limit: int, cursor: str | None) -> Page:
    entries: list[FileEntry] = []
    cursor_error = InvalidInput("That is no cursor of this directory.", data={"cursor": "malformed"})
    with translated_os_errors(path), root.opened(path, READ_DIRECTORY_FLAGS) as fd:
        try:
            entry_names, next_cursor = read_directory(fd, int(cursor or "0"), limit)
        except (ValueError, OverflowError):
            raise cursor_error from None
        except OSError as e:
            if e.errno != errno.EINVAL:
                raise
            raise cursor_error from None
        for name in sorted(entry_names):
            try:
                status = os.lstat(name, dir_fd=fd)
                target = os.readlink(name, dir_fd=fd) if stat.S_ISLNK(status.st_mode) else ""
            except OSError:
                continue  # it was removed or replaced
            entries.append(_file_entry(name, status, target))
    return Page(entries, None if next_cursor is None else str(next_cursor))


def stat_of(root: OpenDirectory, path: FolderPath) -> FileEntry:
    with translated_os_errors(path), root.opened(path, os.O_PATH) as fd:
        return _file_entry(path.parts[-1] if path.parts else ".", os.fstat(fd))


def open_file(root: OpenDirectory, path: FolderPath) -> OpenFile:
    with translated_os_errors(path):
        return _open_regular(root.open(path, READ_FILE_FLAGS))


def _open_regular(fd: int) -> OpenFile:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise WrongKindOfFile("That is no regular file.")
    return OpenFile(fd)


def walk_tree(root: OpenDirectory, path: FolderPath) -> Iterator[ArchiveEntry]:
    with translated_os_errors(path), root.opened(path, os.O_PATH) as fd:
        status = os.fstat(fd)
    name = path.parts[-1] if path.parts else "."
    yield ArchiveEntry(path, _file_entry(name, status), lambda: open_file(root, path))
    if stat.S_ISDIR(status.st_mode):
        with translated_os_errors(path):
            top_fd = root.open(path, READ_DIRECTORY_FLAGS)
        try:
            yield from _walk_below(top_fd, path, len(str(path).encode()), 0)
        finally:
            os.close(top_fd)


def _walk_below(directory_fd: int, path: FolderPath, path_bytes: int, depth: int) -> Iterator[ArchiveEntry]:
    """Yields the entries below a directory with their paths, as :func:`trees.walk` does.

    Entries that are too deep, have a longer path than requests may have, or are unreadable are left out.
    """
    with os.scandir(directory_fd) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
                target = os.readlink(entry.name, dir_fd=directory_fd) if stat.S_ISLNK(status.st_mode) else ""
            except OSError:
                continue  # it was removed or replaced
            name = _printable_name(entry.name)
            child_bytes = path_bytes + 1 + len(name.encode())
            if child_bytes > MAX_PATH_BYTES:
                continue
            child_path = path / name
            open_entry = functools.partial(_open_nofollow, entry.name, directory_fd)
            yield ArchiveEntry(child_path, _file_entry(entry.name, status, target), open_entry)
            if stat.S_ISDIR(status.st_mode) and depth < trees.MAX_DEPTH:
                try:
                    subdirectory_fd = os.open(entry.name, READ_DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=directory_fd)
                except OSError:
                    continue
                try:
                    yield from _walk_below(subdirectory_fd, child_path, child_bytes, depth + 1)
                finally:
                    os.close(subdirectory_fd)


def _open_nofollow(name: str, directory_fd: int) -> OpenFile:
    with translated_os_errors(name):
        return _open_regular(os.open(name, READ_FILE_FLAGS | os.O_NOFOLLOW, dir_fd=directory_fd))
