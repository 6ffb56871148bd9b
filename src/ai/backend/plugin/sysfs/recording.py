"""Recorded trees as one text file each: what a test unpacks instead of the hardware.

A line is one path of the node, and what is there::

    # hardware: 8 x HL-225, driver: habanalabs 1.17.1, command: python -m ai.backend.plugin.sysfs.record gaudi2
    /sys/class/accel/accel0 -> ../../devices/pci0000:16/0000:16:00.0/0000:17:00.0/accel/accel0
    /sys/devices/pci0000:16/0000:16:00.0/0000:17:00.0/status = Operational
    /sys/devices/pci0000:16/0000:16:00.0/0000:17:00.0/broken ! EIO
    /sys/devices/virtual/empty/
    /dev/accel/accel0 =

The text after ``=`` is JSON where it begins with a quotation mark, else it is taken as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ai.backend.common.errors import InvalidInput
from ai.backend.plugin.sysfs.tree import LIMIT, Tree, natural


def unpack(text: str, root: Path) -> None:
    """Make the tree below ``root``: ``root/sys`` and ``root/dev``.

    An attribute that could not be read becomes one that cannot be read either: a link to a file that answers EIO.

    Raises:
        InvalidInput: a line is malformed, or a path is not below /sys or /dev.
    """
    for number, line in enumerate(text.splitlines(), 1):
        line = line.rstrip()
        if not line or line.startswith("#"):
            continue
        path, mark, rest = _split(line)
        if not path.startswith(("/sys/", "/dev/")) or ".." in path.split("/") or not mark:
            raise InvalidInput(f"line {number} of the recording is malformed: {line[:80]!r}")
        place = root / path.strip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if mark == "/":
            place.mkdir(exist_ok=True)
        elif mark == "->":
            place.symlink_to(rest)
        elif mark == "!":
            place.symlink_to("/proc/self/mem")
        else:
            place.write_text((json.loads(rest) if rest.startswith('"') else rest) + "\n", encoding="utf-8")
    for top in ("sys", "dev"):
        (root / top).mkdir(parents=True, exist_ok=True)


def _split(line: str) -> tuple[str, str, str]:
    if line.endswith("/"):
        return line, "/", ""
    for mark in ("->", "=", "!"):
        path, separator, rest = line.partition(f" {mark}")
        if separator and " " not in path:
            return path, mark, rest.strip()
    return line, "", ""


class RecordingTree(Tree):
    """A tree that notes everything that is looked at. :meth:`recorded` is then all that a plugin needs to run again."""

    def __init__(self, sys: Path = Path("/sys"), dev: Path = Path("/dev")) -> None:
        super().__init__(sys, dev)
        self._looked: set[str] = set()

    def read(self, path: str) -> str:
        self._looked.add(path)
        return super().read(path)

    def names(self, path: str) -> list[str]:
        self._looked.add(path)
        return super().names(path)

    def exists(self, path: str) -> bool:
        self._looked.add(path)
        return super().exists(path)

    def resolve(self, path: str) -> str | None:
        self._looked.add(path)
        return super().resolve(path)

    def recorded(self) -> Iterator[str]:
        """Lines of the recording: what was looked at and is there, with the links on the way to it."""
        lines: dict[str, str] = {}
        for path in self._looked:
            self._add(path, lines, depth=0)
        parents = {str(Path(path).parent) for path in lines}
        for path in sorted(lines, key=natural):
            if not (lines[path] == f"{path}/" and path in parents):
                yield lines[path]

    def _add(self, path: str, lines: dict[str, str], depth: int) -> None:
        """Records a path: each link on the way is a line of its own, followed by the path that it leads to."""
        parts = path.strip("/").split("/")
        for n in range(2, len(parts) + 1):
            prefix = "/" + "/".join(parts[:n])
            real = self._real(prefix)
            if not real.is_symlink():
                continue
            link = real.readlink()
            lines[prefix] = f"{prefix} -> {link}"
            target = os.path.normpath(PurePosixPath(prefix).parent / link)
            if depth < 40 and target.startswith(("/sys/", "/dev/")):
                self._add("/".join([target, *parts[n:]]), lines, depth + 1)
            return
        real = self._real(path)
        if real.is_dir():
            lines[path] = f"{path}/"
        elif path.startswith("/dev/"):
            if real.exists():
                lines[path] = f"{path} ="
        elif real.exists():
            lines[path] = self._content(path, real)

    def _content(self, path: str, real: Path) -> str:
        try:
            with real.open("rb") as file:
                text = file.read(LIMIT).decode("utf-8", errors="replace").strip()
        except OSError as e:
            return f"{path} ! {os.strerror(e.errno or 0)}"
        return f"{path} = {json.dumps(text) if not text.isprintable() or text.startswith(chr(34)) else text}".rstrip()
