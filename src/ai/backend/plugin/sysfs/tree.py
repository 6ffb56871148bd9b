"""Reads ``/sys`` and ``/dev`` within bounds, where attributes may be missing, unreadable, huge or garbage.

Nothing here writes or opens a device node. Paths are absolute as on the node, whatever the roots are. A recorded tree
is a text file, of which a line is a path and its content::

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
import re
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from ai.backend.common.errors import InvalidInput

LIMIT = 65_536
"""Bytes that are read of one attribute at most; the kernel writes at most one page of 4 KiB into most."""

_NUMBER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]{1,32}|\d{1,32}(?:\.\d{1,32})?)", re.ASCII)


class Missing(Exception):
    """Raised when a path of sysfs or /dev does not exist."""


class Unreadable(Exception):
    """Raised when an attribute of sysfs exists but cannot be used. The text names the attribute and the reason."""


class Tree:
    """Reads the node's ``/sys`` and ``/dev``, or recorded ones below other root directories."""

    def __init__(self, sys: Path = Path("/sys"), dev: Path = Path("/dev")) -> None:
        self._roots = {"sys": Path(sys), "dev": Path(dev)}
        self._bases = {top_folder: os.path.realpath(root_path) for top_folder, root_path in self._roots.items()}

    def _real(self, path: str) -> Path:
        """Returns the path at which a path of the node is really read; other roots replace only /sys and /dev."""
        _, tree_root, *relative = PurePosixPath(path).parts
        return self._roots[tree_root].joinpath(*relative) if tree_root in self._roots else Path(path)

    def read(self, path: str) -> str:
        """Returns the text of an attribute without white space around it.

        Raises Missing: there is no such file; Unreadable: it is no regular file, larger than :data:`LIMIT`, or
        the driver answers with an error.
        """
        real_path = self._real(path)
        try:
            if not stat.S_ISREG(real_path.stat().st_mode):
                raise Unreadable(f"{path} is not a file")
            with real_path.open("rb") as file:
                data = file.read(LIMIT + 1)
        except (FileNotFoundError, NotADirectoryError):
            raise Missing(path) from None
        except OSError as e:
            raise Unreadable(f"{path}: {os.strerror(e.errno or 0)}") from None
        if len(data) > LIMIT:
            raise Unreadable(f"{path} is larger than {LIMIT} bytes")
        return data.decode("utf-8", errors="replace").replace("\0", "").strip()

    def number(self, path: str) -> float:
        """Reads an attribute as a decimal or 0x number. Raises as :meth:`read`, and Unreadable for other text."""
        return parse_number(self.read(path), path)

    def text(self, path: str) -> str | None:
        """Reads the text of an attribute like :meth:`read`. Returns None if that fails or the text is empty."""
        try:
            return self.read(path) or None
        except (Missing, Unreadable):
            return None

    def value(self, path: str) -> float | None:
        """Reads an attribute as a number, like :meth:`number`. Returns None if that fails."""
        try:
            return self.number(path)
        except (Missing, Unreadable):
            return None

    def glob(self, pattern: str) -> list[str]:
        """Returns existing paths that match, in natural order (accel2 before accel10).

        A ``*`` matches within one name.
        """
        matches = [""]
        for pattern_part in PurePosixPath(pattern).parts[1:]:
            if any(wildcard in pattern_part for wildcard in "*?["):
                matches = [
                    f"{parent_path}/{entry_name}"
                    for parent_path in matches
                    for entry_name in self.names(parent_path)
                    if fnmatchcase(entry_name, pattern_part)
                ]
            else:
                matches = [f"{parent_path}/{pattern_part}" for parent_path in matches]
        return sorted((path for path in matches if self.exists(path)), key=natural_sort_key)

    def names(self, path: str) -> list[str]:
        """Lists a directory in natural order. Returns an empty list if the directory cannot be listed."""
        try:
            return sorted((entry.name for entry in self._real(path).iterdir()), key=natural_sort_key)
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        try:
            self._real(path).stat()
        except OSError:
            return False
        return True

    def resolve(self, path: str) -> str | None:
        """Returns the path without links. Returns None for a loop or a missing path."""
        try:
            real_path = os.path.realpath(self._real(path), strict=True)
        except OSError:
            return None
        for top_folder, root_path in self._bases.items():
            if real_path == root_path or real_path.startswith(root_path + "/"):
                return f"/{top_folder}{real_path[len(root_path) :]}"
        return real_path

    def group(self, path: str) -> int | None:
        """Returns the id of the group that may use a device node, unless everybody may use the node.

        Returns None for root's group or a missing node.
        """
        try:
            status = self._real(path).stat()
        except OSError:
            return None
        is_for_everybody = status.st_mode & stat.S_IROTH and status.st_mode & stat.S_IWOTH
        return status.st_gid if status.st_gid and status.st_mode & stat.S_IRGRP and not is_for_everybody else None


def parse_number(text: str, where: str) -> float:
    """Parses a decimal or 0x number. Raises Unreadable if the text is not a finite number."""
    if _NUMBER.fullmatch(text) is None:
        raise Unreadable(f"{where} is not a number: {text[:40]!r}")
    return float(int(text, 16)) if "x" in text.lower() else float(text)


def natural_sort_key(text: str) -> list[tuple[int, int, str]]:
    """Returns a sort key under which numbers inside of names count as numbers."""
    text_parts = re.split(r"(\d+)", text)
    return [(0, int(text_part), "") if text_part.isdecimal() else (1, 0, text_part) for text_part in text_parts]


def unpack(text: str, root: Path) -> None:
    """Makes the recorded tree below ``root``: ``root/sys`` and ``root/dev``.

    An attribute that was unreadable becomes a link to a file that answers EIO. Raises InvalidInput for a
    malformed line, or a path not below /sys or /dev.
    """
    for line_number, line in enumerate(text.splitlines(), 1):
        line = line.rstrip()
        if not line or line.startswith("#"):
            continue
        path, entry_kind, entry_content = _split_line(line)
        if not path.startswith(("/sys/", "/dev/")) or ".." in path.split("/") or not entry_kind:
            raise InvalidInput(f"line {line_number} of the recording is malformed: {line[:80]!r}")
        entry_path = root / path.strip("/")
        entry_path.parent.mkdir(parents=True, exist_ok=True)
        if entry_kind == "/":
            entry_path.mkdir(exist_ok=True)
        elif entry_kind == "->":
            entry_path.symlink_to(entry_content)
        elif entry_kind == "!":
            entry_path.symlink_to("/proc/self/mem")
        else:
            entry_path.write_text(
                (json.loads(entry_content) if entry_content.startswith('"') else entry_content) + "\n", encoding="utf-8"
            )
    for top_folder in ("sys", "dev"):
        (root / top_folder).mkdir(parents=True, exist_ok=True)


def _split_line(line: str) -> tuple[str, str, str]:
    if line.endswith("/"):
        return line, "/", ""
    for entry_kind in ("->", "=", "!"):
        path, separator, entry_content = line.partition(f" {entry_kind}")
        if separator and " " not in path:
            return path, entry_kind, entry_content.strip()
    return line, "", ""


class RecordingTree(Tree):
    """A tree that remembers every path that is read; :meth:`recorded` yields a recording of these paths.

    The recording has everything that a plugin needs to run again.
    """

    def __init__(self, sys: Path = Path("/sys"), dev: Path = Path("/dev")) -> None:
        super().__init__(sys, dev)
        self._paths: set[str] = set()

    def _real(self, path: str) -> Path:
        self._paths.add(path)
        return super()._real(path)

    def recorded(self) -> Iterator[str]:
        """Yields the lines of the recording: each existing path that was read, and each link on the way to a path."""
        line_by_path: dict[str, str] = {}
        for path in self._paths:
            self._record_path(path, line_by_path, depth=0)
        parents = {str(Path(path).parent) for path in line_by_path}
        for path in sorted(line_by_path, key=natural_sort_key):
            if not (line_by_path[path] == f"{path}/" and path in parents):
                yield line_by_path[path]

    def _record_path(self, path: str, line_by_path: dict[str, str], depth: int) -> None:
        """Adds the lines for one path to ``line_by_path``: one for each link on the way, and one for the final path."""
        path_parts = path.strip("/").split("/")
        for part_count in range(2, len(path_parts) + 1):
            path_prefix = "/" + "/".join(path_parts[:part_count])
            real_path = super()._real(path_prefix)
            if not real_path.is_symlink():
                continue
            link = real_path.readlink()
            line_by_path[path_prefix] = f"{path_prefix} -> {link}"
            target = os.path.normpath(PurePosixPath(path_prefix).parent / link)
            if depth < 40 and target.startswith(("/sys/", "/dev/")):
                self._record_path("/".join([target, *path_parts[part_count:]]), line_by_path, depth + 1)
            return
        real_path = super()._real(path)
        if real_path.is_dir():
            line_by_path[path] = f"{path}/"
        elif path.startswith("/dev/"):
            if real_path.exists():
                line_by_path[path] = f"{path} ="
        elif real_path.exists():
            line_by_path[path] = self._recorded_content(path, real_path)

    def _recorded_content(self, path: str, real_path: Path) -> str:
        try:
            with real_path.open("rb") as file:
                value = file.read(LIMIT).decode("utf-8", errors="replace").strip()
        except OSError as e:
            return f"{path} ! {os.strerror(e.errno or 0)}"
        return (
            f"{path} = {json.dumps(value) if not value.isprintable() or value.startswith(chr(34)) else value}".rstrip()
        )
