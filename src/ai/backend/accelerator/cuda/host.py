"""Reads files, device files and libraries of the driver on this node."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

_LDCONFIG = ("/sbin/ldconfig", "/usr/sbin/ldconfig")
_LINE = re.compile(r"\s*(\S+) \(([^)]*)\) => (\S+)")


class Host(Protocol):
    """Every call may block."""

    def read(self, path: str) -> str | None:
        """The text of a small file, None if there is none."""
        ...

    def exists(self, path: str) -> bool: ...

    def closed_group(self, path: str) -> int | None:
        """The group that a device file is open to, where it is not open to everybody."""
        ...

    def loader_cache(self) -> Mapping[str, str]:
        """Library name -> path, of this machine's own kind of programs, as the loader would choose."""
        ...

    def resolve(self, path: str) -> str:
        """The path without symbolic links."""
        ...

    def program(self, name: str) -> str | None:
        """The path of a program of the system."""
        ...


class LinuxHost:
    """This machine."""

    def read(self, path: str) -> str | None:
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def closed_group(self, path: str) -> int | None:
        try:
            found = Path(path).stat()
        except OSError:
            return None
        return found.st_gid if not found.st_mode & stat.S_IROTH and found.st_mode & stat.S_IRGRP else None

    def loader_cache(self) -> Mapping[str, str]:
        command = next((c for c in _LDCONFIG if self.exists(c)), "ldconfig")
        try:
            done = subprocess.run([command, "-p"], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return {}
        return parse_loader_cache(done.stdout, os.uname().machine)

    def resolve(self, path: str) -> str:
        return os.path.realpath(path)

    def program(self, name: str) -> str | None:
        return shutil.which(name, path="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")


def parse_loader_cache(text: str, machine: str) -> dict[str, str]:
    """The output of ``ldconfig -p``; of two entries of one name the first counts, as for the loader."""
    wanted = {"x86_64": "x86-64", "aarch64": "AArch64"}.get(machine, "")
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match and wanted in match[2]:
            found.setdefault(match[1], match[3])
    return found
