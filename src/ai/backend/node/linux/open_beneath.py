"""Opens paths beneath a folder in which a session writes, without following any link."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence

BENEATH = "/./"
"""In a source: what follows is looked up beneath what stands before it, through no link. Sessions write there."""
WALK = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def open_source(source: str) -> int:
    """Opens a bind mount's source, and returns its descriptor. Raises OSError, also for a link after BENEATH."""
    folder, _, path_below = source.partition(BENEATH)
    fd = os.open(folder or "/", os.O_PATH | os.O_CLOEXEC)
    if not path_below:
        return fd
    try:
        parts = path_below.split("/")
        if not {"", ".", ".."}.isdisjoint(parts):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), source)
        return open_through_no_link(fd, parts, WALK)
    finally:
        os.close(fd)


def open_through_no_link(directory_fd: int, parts: Sequence[str], flags: int, creation_mode: int = 0) -> int:
    """Opens the path of ``parts`` below a directory without following links. Raises OSError, ELOOP for a link."""
    *folder_names, last_name = parts
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


def _open_subdirectory(parent_fd: int, directory_name: str) -> int:
    try:
        return os.open(directory_name, WALK | os.O_NOFOLLOW, dir_fd=parent_fd)
    except NotADirectoryError:
        if os.path.islink(f"/proc/self/fd/{parent_fd}/{directory_name}"):  # noqa: PTH114  # only for the message
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), directory_name) from None
        raise
