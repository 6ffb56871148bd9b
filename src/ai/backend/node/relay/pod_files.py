"""Locates the socket in a pod's shared folder, and writes files that the agent sends to either container of the pod.

Both containers of the pod share the folder.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

SOCKET = "relay.sock"


def place_file(folder: str, path_parts: List[str], content: bytes, mode: int) -> None:
    """Writes a file below a folder, without following a link. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for path_part in path_parts[:-1]:
            try:
                os.mkdir(path_part, 0o755, dir_fd=fd)
            except FileExistsError:
                pass
            fd, parent_fd = os.open(path_part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd), fd
            os.close(parent_fd)
        # In place where it is there: another container may have mounted this very file.
        file_fd = os.open(path_parts[-1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode, dir_fd=fd)
        with os.fdopen(file_fd, "wb") as file:
            os.fchmod(file_fd, mode)
            file.write(content)
    finally:
        os.close(fd)
