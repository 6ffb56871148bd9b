"""Writes the file with the process id of a daemon (spec 03-02, ``pid-file``)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ai.backend.common.errors import Conflict, InvalidInput


class PidFile:
    """Keeps the pid file while the block runs.

    None as path means no file. The file of a killed process is replaced. The ``fcntl`` lock is not inherited by
    workloads, which may outlive the daemon.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = None if path is None else path.expanduser()
        self._fd: int | None = None

    def __enter__(self) -> None:
        """Creates the file. Raises Conflict if another process holds it, InvalidInput if it cannot be written."""
        if self._path is None:
            return
        try:
            self._fd = _open_locked(self._path)
            os.truncate(self._fd, 0)
            os.write(self._fd, f"{os.getpid()}\n".encode())
        except BlockingIOError:
            holder_pid = self._path.read_text(errors="replace").strip()[:20]
            raise Conflict(
                f"Another process ({holder_pid or '?'}) runs with the pid-file {self._path}.",
                data={"pid-file": "in use"},
            ) from None
        except OSError as e:
            raise InvalidInput(
                f"The pid-file {self._path} cannot be written: {e.strerror}.", data={"pid-file": "not writable"}
            ) from None

    def __exit__(self, *_: object) -> None:
        if self._fd is not None and self._path is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = None


def _open_locked(path: Path) -> int:
    """Opens and locks the file. Raises BlockingIOError if another process has locked it."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file_at(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # its holder has removed it between the two


def _is_file_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
