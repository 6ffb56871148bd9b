"""File systems: the table of mounts (proc(5)), free space, and files that are unlinked but open."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_ESCAPE = re.compile(r"\\([0-7]{3})")
LEAST_SHARE = 20  # a twentieth of a small file system is enough of a reserve


@dataclass(frozen=True, slots=True)
class MountEntry:
    """An entry of the table of mounts: ``options`` of the mount itself, ``super_options`` of its file system."""

    mount_point: str
    source: str
    fstype: str
    options: tuple[str, ...]
    super_options: tuple[str, ...]


def read_mounts(proc: Path = Path("/proc")) -> list[MountEntry]:
    """Returns every mount, in the order of mounting. Raises OSError."""
    return parse_mountinfo((proc / "self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))


def parse_mountinfo(text: str) -> list[MountEntry]:
    """Returns the mounts of a text of this format; a line of another form is left out."""
    mounts: list[MountEntry] = []
    for line in text.split("\n"):  # names may hold other line breaks
        left, _, right = line.partition(" - ")
        fields, file_system = left.split(" "), right.split(" ")
        if len(fields) < 6 or len(file_system) < 3:
            continue
        mounts.append(
            MountEntry(
                mount_point=_unescape(fields[4]),
                source=_unescape(file_system[1]),
                fstype=file_system[0],
                options=tuple(fields[5].split(",")),
                super_options=tuple(file_system[2].split(",")),
            )
        )
    return mounts


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def is_low(path: Path, reserve_bytes: int) -> bool:
    """Returns whether the file system of ``path`` has less free than the reserve or a twentieth, whichever is less."""
    try:
        status = os.statvfs(path)
    except OSError:
        return False
    reserve = min(reserve_bytes, status.f_blocks * status.f_frsize // LEAST_SHARE)
    return status.f_bavail * status.f_frsize < reserve


def unlinked_bytes(pids: Iterable[int], home: Path) -> int:
    """Returns the bytes below ``home`` in unlinked files that processes hold open."""
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
