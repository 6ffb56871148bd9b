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
    """Opens the source of a bind mount, and returns its descriptor. Raises OSError, also for a link after BENEATH."""
    top, _, below = source.partition(BENEATH)
    fd = os.open(top or "/", os.O_PATH | os.O_CLOEXEC)
    if not below:
        return fd
    try:
        parts = below.split("/")
        if not {"", ".", ".."}.isdisjoint(parts):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), source)
        return open_through_no_link(fd, parts, WALK)
    finally:
        os.close(fd)


def open_through_no_link(directory: int, parts: Sequence[str], flags: int, mode: int = 0) -> int:
    """Walks from a directory by descriptors, and opens the last part. Raises OSError, ELOOP for a link."""
    *above, name = parts
    fd = os.dup(directory)
    try:
        for part in above:
            fd, last = _enter(fd, part), fd
            os.close(last)
        opened = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=fd)
    finally:
        os.close(fd)
    if flags & os.O_PATH and stat.S_ISLNK(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    return opened


def _enter(fd: int, part: str) -> int:
    try:
        return os.open(part, WALK | os.O_NOFOLLOW, dir_fd=fd)
    except NotADirectoryError:
        if os.path.islink(f"/proc/self/fd/{fd}/{part}"):  # noqa: PTH114  # only for the message
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), part) from None
        raise
