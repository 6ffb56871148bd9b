"""Opens files in a folder without ever leaving it, even while others change the folder.

With openat2 the kernel resolves the whole path beneath the folder's descriptor in one call (RESOLVE_BENEATH), without
a gap between check and use; links that stay inside are followed. Without openat2 the path is walked by descriptors, one
part at a time, and a link on the way ends the walk. See docs/decisions/0080.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from ai.backend.common.errors import Conflict, FileAlreadyExists, InvalidPath, NoSuchFile, StorageFull, WrongKindOfFile
from ai.backend.common.volume_paths import FolderPath
from ai.backend.node.linux.open_beneath import WALK, open_through_no_link
from ai.backend.node.linux.syscalls import has_openat2, openat2

READ_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
READ_FILE_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a FIFO does not hold us up
_ERRORS_BY_ERRNO = {
    errno.ENOENT: (NoSuchFile, ""),
    errno.ENOTDIR: (WrongKindOfFile, "A part of the path is not a directory."),
    errno.EISDIR: (WrongKindOfFile, "That is a directory."),
    errno.ENXIO: (WrongKindOfFile, "That is no regular file."),
    errno.EEXIST: (FileAlreadyExists, ""),
    errno.ENOTEMPTY: (FileAlreadyExists, ""),
    errno.EXDEV: (InvalidPath, "The path leads out of the folder."),
    errno.ELOOP: (InvalidPath, "The path leads through a link that is not followed."),
    errno.EAGAIN: (InvalidPath, "The path is being changed."),
    errno.ENAMETOOLONG: (InvalidPath, "The path is too long for this volume."),
    errno.EILSEQ: (InvalidPath, "The volume does not take this name."),
    errno.ENOSPC: (StorageFull, ""),
    errno.EDQUOT: (StorageFull, "The volume's own quota is used up."),
    errno.EACCES: (Conflict, "The storage proxy may not touch that file."),
    errno.EPERM: (Conflict, "The storage proxy may not touch that file."),
    errno.EROFS: (Conflict, "The volume is read-only."),
}


@contextmanager
def translated_os_errors(path: object = None) -> Iterator[None]:
    """Translates an OSError of the file system into an error that users understand; passes an unexpected OSError on."""
    try:
        yield
    except OSError as error:
        if error.errno not in _ERRORS_BY_ERRNO:
            raise
        error_type, message = _ERRORS_BY_ERRNO[error.errno]
        if error_type is NoSuchFile and path is not None:
            message = f"There is no {str(path)[:256]!r}."
        raise error_type(message, data=None if path is None else {"path": str(path)[:256]}) from None


@contextmanager
def open_fd(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> Iterator[int]:
    """Opens a file as open(2) does, yields its descriptor, and closes it after the block."""
    fd = os.open(path, flags, mode, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


class OpenDirectory:
    """Represents an open directory, from which paths beneath it are opened; owns its descriptor ``fd``."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def at(cls, path: Path | str) -> Self:
        """Opens the directory. Raises OSError. Links in the operator's path are followed, except in its last part."""
        return cls(os.open(path, READ_DIRECTORY_FLAGS | os.O_NOFOLLOW))

    def open(self, path: FolderPath, flags: int, mode: int = 0) -> int:
        """Opens a path below the directory and returns a descriptor; never leads out of the directory.

        Opens a path's target; without openat2, the path itself through no link. Raises OSError: as open(2); EXDEV or
        ELOOP if the path leads, or might lead, out.
        """
        if has_openat2():
            return openat2(self.fd, os.fsencode(str(path)), flags, mode)
        return open_through_no_link(self.fd, path.parts or (".",), flags, mode)

    @contextmanager
    def opened(self, path: FolderPath, flags: int, mode: int = 0) -> Iterator[int]:
        fd = self.open(path, flags, mode)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def parent(self, path: FolderPath, flags: int = WALK) -> Iterator[tuple[int, str]]:
        """Opens the directory that holds a path, and yields it with the name there, for operations that change entries.
        Raises InvalidPath: the path is the folder itself."""
        if not path.parts:
            raise InvalidPath("That is the folder itself.")
        with self.opened(FolderPath(path.parts[:-1]), flags) as fd:
            yield fd, path.parts[-1]

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
