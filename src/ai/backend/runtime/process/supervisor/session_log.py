"""The workload's own output on disk: two files, the older of which is dropped, so that it never grows without end."""

from __future__ import annotations

import os

NAMES = ("log.1", "log.0")
"""Older and newer part, in a workload's directory."""


class SessionLog:
    """Appends what the runner prints."""

    def __init__(self, limit: int) -> None:
        self._limit = max(4096, limit // 2)
        self._open()

    def _open(self) -> None:
        self._fd = os.open(NAMES[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size

    def write(self, data: bytes) -> None:
        """Appends output. On a full disk it is lost, never the workload."""
        try:
            if self._size + len(data) > self._limit and self._size:
                os.close(self._fd)
                os.replace(NAMES[1], NAMES[0])  # no pathlib here: memory
                self._open()
            self._size += os.write(self._fd, data)
        except OSError:
            return
