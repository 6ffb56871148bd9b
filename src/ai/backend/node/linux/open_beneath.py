"""Opens paths beneath a folder in which a session writes, without following any link."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence

BENEATH = "/./"
"""Separates the two parts of a mount's source. The second part is looked up beneath the first, where sessions write,
through no link.
"""
WALK = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def open_source(source: str) -> int:
    """Opens the source path of a bind mount, and returns the descriptor.

    Raises OSError, also if the part of the path after BENEATH contains a link.
    """
    parent_path, _, path_below = source.partition(BENEATH)
    fd = os.open(parent_path or "/", os.O_PATH | os.O_CLOEXEC)
    if not path_below:
        return fd
    try:
        path_parts = path_below.split("/")
        if not {"", ".", ".."}.isdisjoint(path_parts):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), source)
        return open_through_no_link(fd, path_parts, WALK)
    finally:
        os.close(fd)


def open_through_no_link(directory_fd: int, path_parts: Sequence[str], flags: int, creation_mode: int = 0) -> int:
    """Opens the path of ``path_parts`` below a directory without following links. Raises OSError, ELOOP for a link."""
    *folder_names, last_name = path_parts
    fd = os.dup(directory_fd)
    try:
        for part_name in folder_names:
            fd, parent_fd = _open_subdirectory(fd, part_name), fd
            os.close(parent_fd)
        opened_fd = os.open(last_name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, creation_mode, dir_fd=fd)
    finally:
        os.close(fd)
    if flags & os.O_PATH and stat.S_ISLNK(os.fstat(opened_fd).st_mode):
        os.close(opened_fd)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), last_name)
    return opened_fd


def make_directories(directory_fd: int, path_parts: Sequence[str], owner: Sequence[int] | None) -> int:
    """Opens a directory below another through no link. Makes missing directories, for the owner. Raises OSError."""
    fd = os.dup(directory_fd)
    try:
        for part_name in path_parts:
            try:
                os.mkdir(part_name, 0o755, dir_fd=fd)
                if owner is not None:
                    os.chown(part_name, *owner, dir_fd=fd, follow_symlinks=False)
            except FileExistsError:
                pass
            fd, parent_fd = _open_subdirectory(fd, part_name), fd
            os.close(parent_fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def make_mount_point(directory: str, path_below: str, owner: Sequence[int] | None, *, is_directory: bool) -> int:
    """Opens a mount point below a directory in which a session writes, through no link; makes it if it is missing.

    A mount on ``/proc/self/fd/N`` of it then lies where it was opened, whatever is renamed meanwhile. Raises OSError.
    """
    directory_fd = os.open(directory, WALK)
    try:
        *parent_names, name = path_below.split("/")
        parent_fd = make_directories(directory_fd, [*parent_names, name] if is_directory else parent_names, owner)
        if is_directory:
            return parent_fd
        try:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=parent_fd))
            if owner is not None:
                os.chown(name, *owner, dir_fd=parent_fd, follow_symlinks=False)
        except FileExistsError:
            pass
        try:
            return open_through_no_link(parent_fd, [name], os.O_PATH)
        finally:
            os.close(parent_fd)
    finally:
        os.close(directory_fd)


def _open_subdirectory(parent_fd: int, directory_name: str) -> int:
    try:
        return os.open(directory_name, WALK | os.O_NOFOLLOW, dir_fd=parent_fd)
    except NotADirectoryError:
        if os.path.islink(f"/proc/self/fd/{parent_fd}/{directory_name}"):  # noqa: PTH114  # only for the message
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), directory_name) from None
        raise
