"""Paths beneath a folder in which a session writes: opened without following any link."""

from __future__ import annotations

import os

BENEATH = "/./"
"""In a source: what follows is looked up beneath what stands before it, through no link. Sessions write there."""


def open_source(source: str) -> int:
    """A file descriptor of what is to be bound.

    Raises:
        OSError: it is not there, or a part after BENEATH is no directory, which a link is none.
    """
    top, _, below = source.partition(BENEATH)
    fd = os.open(top or "/", os.O_PATH | os.O_CLOEXEC)
    for part in below.split("/") if below else ():
        try:
            if part in ("", ".", ".."):
                raise NotADirectoryError(source)
            inner = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd
