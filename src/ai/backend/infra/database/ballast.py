"""Reserves disk space in a file, and releases it to the database when the disk is full."""

from __future__ import annotations

import os
import time
from pathlib import Path

STEPS = 8
STEP_INTERVAL_S = 2.0
"""The least time between two steps. A process that fills the disk also fills the space that a step releases: the time
suffices to end it before the next step."""
REFILL_INTERVAL_S = 60.0
_ROOM_FACTOR = 8


class Ballast:
    """Reserves ``size_bytes`` of disk in a file beside a database. A size of 0 reserves nothing."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._released_at = self._filled_at = -REFILL_INTERVAL_S

    def fill(self) -> None:
        """Reserves the whole space again if the disk has many times as much room.

        This happens at most once a minute.
        """
        now = time.monotonic()
        if not self._size_bytes or now < self._filled_at + REFILL_INTERVAL_S:
            return
        self._filled_at = now
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            disk_status = os.fstatvfs(fd)
            if disk_status.f_bavail * disk_status.f_frsize > _ROOM_FACTOR * self._size_bytes:
                os.posix_fallocate(fd, 0, self._size_bytes)
        except OSError:
            os.ftruncate(fd, 0)  # a part of it would be taken from what is short
        finally:
            os.close(fd)

    def release(self) -> bool:
        """Releases a step of the reserved space. Returns False if none is left, or if a step was released just now."""
        now = time.monotonic()
        if not self._size_bytes or now < self._released_at + STEP_INTERVAL_S:
            return False
        try:
            reserved_bytes = self._path.stat().st_size
            if reserved_bytes == 0:
                return False
            os.truncate(self._path, max(0, reserved_bytes - self._size_bytes // STEPS))
        except OSError:
            return False
        self._released_at = self._filled_at = now
        return True
