"""Measures the disk use of workloads, and whether the platform's reserve is left.

A home without a limit of its own may fill the disk on which the manager's database lies; then nobody could even end the
session that did it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

LEAST_SHARE = 20  # a twentieth of a small file system is enough of a reserve


def is_low(path: Path, reserve_bytes: int) -> bool:
    """Return whether the file system of ``path`` has less free than the reserve or a twentieth, whichever is less."""
    try:
        status = os.statvfs(path)
    except OSError:
        return False
    reserve = min(reserve_bytes, status.f_blocks * status.f_frsize // LEAST_SHARE)
    return status.f_bavail * status.f_frsize < reserve


def unlinked_bytes(pids: Iterable[int], home: Path) -> int:
    """Return the bytes below ``home`` in unlinked files that processes hold open."""
    try:
        device = home.stat().st_dev
    except OSError:
        return 0
    sizes: dict[int, int] = {}
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)  # noqa: PTH208  # thousands of short names
        except OSError:
            continue
        for name in names:
            try:
                facts = os.stat(f"{folder}/{name}")  # noqa: PTH116  # likewise
            except OSError:
                continue
            if stat.S_ISREG(facts.st_mode) and facts.st_nlink == 0 and facts.st_dev == device:
                sizes[facts.st_ino] = facts.st_blocks * 512
    return sum(sizes.values())
