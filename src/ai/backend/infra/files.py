"""Writes files atomically, and locates the data of a user."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replaces a file so that readers find either the old or the new content, even after a crash.

    Not for simultaneous writers of one file.
    """
    temporary_path = path.with_name(f".{path.name}.tmp")
    temporary_path.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    temporary_path.replace(path)


def sync_folder(folder: Path) -> None:
    """Writes the file names of a folder to the disk, so that they survive a crash."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def default_data_dir() -> Path:
    """Returns ``$XDG_DATA_HOME/backend.ai``, by default ``~/.local/share/backend.ai``."""
    data_home = os.environ.get("XDG_DATA_HOME")
    return (Path(data_home) if data_home else Path.home() / ".local" / "share") / "backend.ai"
