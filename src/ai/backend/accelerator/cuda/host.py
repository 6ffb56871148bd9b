"""Reads files, device files and libraries of the driver on this node."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

_LDCONFIG = ("/sbin/ldconfig", "/usr/sbin/ldconfig")
_CACHE_LINE = re.compile(r"\s*(\S+) \(([^)]*)\) => (\S+)")


class Host:
    """Reads this machine. Every call may block."""

    def read(self, path: str) -> str | None:
        """Returns the text of a small file, None if there is none."""
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def closed_group(self, path: str) -> int | None:
        """Returns the id of the group that may read a device file, or None if everybody may read it or no group may.

        Returns None for a missing file too.
        """
        try:
            status = Path(path).stat()
        except OSError:
            return None
        return status.st_gid if not status.st_mode & stat.S_IROTH and status.st_mode & stat.S_IRGRP else None

    def loader_cache(self) -> Mapping[str, str]:
        """Returns the path of each installed library of this machine's architecture by name, read from ``ldconfig -p``.

        Of two libraries of one name the path is that which the loader would choose.
        """
        command = next((path for path in _LDCONFIG if self.exists(path)), "ldconfig")
        try:
            completed = subprocess.run([command, "-p"], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return {}
        return parse_loader_cache(completed.stdout, os.uname().machine)

    def resolve(self, path: str) -> str:
        """Returns the path without symbolic links."""
        return os.path.realpath(path)

    def program(self, name: str) -> str | None:
        """Returns the path of a program of the system."""
        return shutil.which(name, path="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")


def parse_loader_cache(text: str, machine: str) -> dict[str, str]:
    """Parses the output of ``ldconfig -p``; of two entries of one name the first counts, as for the loader."""
    architecture = {"x86_64": "x86-64", "aarch64": "AArch64"}.get(machine, "")
    libraries: dict[str, str] = {}
    for line in text.splitlines():
        match = _CACHE_LINE.fullmatch(line)
        if match and architecture in match[2]:
            libraries.setdefault(match[1], match[3])
    return libraries
