"""Stores the workload's own output on disk in two files, the older of which is dropped at the limit."""

from __future__ import annotations

import os

LOG_FILE_NAMES = ("log.1", "log.0")
"""The names of the older and the newer part of the log, in a workload's directory."""


class SessionLog:
    """Appends the runner's output to the log files of the workload."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = max(4096, limit_bytes // 2)
        self._fd = -1
        self._size_bytes = 0

    def _open(self) -> None:
        self._fd = os.open(LOG_FILE_NAMES[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size_bytes = os.fstat(self._fd).st_size

    def write(self, output_bytes: bytes) -> None:
        """Appends output of the runner; drops the output on a full disk."""
        try:
            if self._fd < 0:
                self._open()  # most small jobs print nothing
            if self._size_bytes + len(output_bytes) > self._limit_bytes and self._size_bytes:
                os.close(self._fd)
                os.replace(LOG_FILE_NAMES[1], LOG_FILE_NAMES[0])  # no pathlib here: memory
                self._open()
            self._size_bytes += os.write(self._fd, output_bytes)
        except OSError:
            return
