"""A small durable map: the newest value of each key, in one file that is only appended to.

One line for each change, with a checksum: a line that was cut short by the death of the writer is ignored, and the
value before it holds. The file is rewritten, atomically, when most of it is out of date. One open file and one
``write`` for each change keep it cheap where opening and renaming files is slow. The values stay in the file: in
memory is only where they are.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

from ai.backend.infra.atomic_write import write_atomically

log = logging.getLogger(__name__)
_SMALL = 1024 * 1024
"""Below this size a file is never rewritten."""


class Journal:
    """Keys are text, values are JSON documents as bytes without a line break."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[str, tuple[int, int]] = {}
        self._fd: int | None = None
        self._size = 0
        self._live = 0

    def open(self) -> dict[str, bytes]:
        """Read everything; returns the newest value of each key. Damaged lines are kept in ``<name>.damaged``."""
        self.close()
        values: dict[str, bytes] = {}
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            lines = [b""]
        bad = [line for line in lines[:-1] if not _replay(line, values)]
        if lines[-1]:
            log.warning("the last change of %s was cut short and did not happen", self._path)
        if bad:
            log.error("%d damaged lines of %s are set aside", len(bad), self._path)
            with self._path.with_name(self._path.name + ".damaged").open("ab") as f:
                f.write(b"\n".join(bad) + b"\n")
        self._rewrite(values)
        return values

    def get(self, key: str) -> bytes | None:
        """Raises OSError if it cannot be read."""
        place = self._places.get(key)
        return None if place is None else os.pread(self._file(), place[1], place[0])

    def put(self, key: str, value: bytes) -> None:
        """Raises OSError if it cannot be written; the old value then holds."""
        old = self.get(key)
        if old != value:
            self._append(_line(key, value))
            self._note(key, value, self._size)
            self._live -= len(old or b"")
            self._rewrite_if_old()

    def delete(self, key: str) -> None:
        """Safe without such a key."""
        if key in self._places:
            self._append(_line(key, b""))
            self._live -= self._places.pop(key)[1]
            self._rewrite_if_old()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _file(self) -> int:
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self._size = os.fstat(self._fd).st_size
        return self._fd

    def _append(self, line: bytes) -> None:
        fd = self._file()
        written = os.write(fd, line)
        if written < len(line):  # the disk is full: the half line must not spoil the next one
            os.ftruncate(fd, self._size)
            raise OSError(f"{self._path} could not be written")
        self._size += written

    def _note(self, key: str, value: bytes, end: int) -> None:
        """The value is that of the line that ends there."""
        self._places[key] = end - 1 - len(value), len(value)
        self._live += len(value)

    def _rewrite_if_old(self) -> None:
        if self._size > max(_SMALL, 4 * self._live):
            self._rewrite({key: os.pread(self._file(), length, start) for key, (start, length) in self._places.items()})

    def _rewrite(self, values: Mapping[str, bytes]) -> None:
        lines = [_line(key, value) for key, value in values.items()]
        write_atomically(self._path, b"".join(lines))
        self.close()
        self._places, self._live, end = {}, 0, 0
        for line, (key, value) in zip(lines, values.items(), strict=True):
            end += len(line)
            self._note(key, value, end)


def _replay(line: bytes, values: dict[str, bytes]) -> bool:
    """Make the change of a line; False if it is damaged."""
    checksum, _, rest = line.partition(b" ")
    key, _, value = rest.partition(b" ")
    if checksum != _checksum(rest):
        return False
    name = key.decode()
    if value:
        values[name] = value
    else:
        values.pop(name, None)
    return True


def _checksum(rest: bytes) -> bytes:
    return b"%08x" % zlib.crc32(rest)


def _line(key: str, value: bytes) -> bytes:
    if not key or " " in key or "\n" in key or b"\n" in value:
        raise ValueError(f"not a key and a JSON document on one line: {json.dumps(key)[:80]}")
    rest = key.encode() + b" " + value
    return _checksum(rest) + b" " + rest + b"\n"
