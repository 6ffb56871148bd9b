"""Reads the table of mounts of this process (proc(5), /proc/self/mountinfo)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One mount. ``options`` are those of the mount, ``super_options`` those of its file system."""

    mount_point: str
    source: str
    fstype: str
    options: tuple[str, ...]
    super_options: tuple[str, ...]


def read_mounts(proc: Path = Path("/proc")) -> list[MountEntry]:
    """Return every mount, in the order of mounting. Raises OSError."""
    return parse_mountinfo((proc / "self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))


def parse_mountinfo(text: str) -> list[MountEntry]:
    """Return the mounts of a text of this format; a line of another form is left out."""
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
    """Decode blanks, line breaks and backslashes, which are written in octal."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
