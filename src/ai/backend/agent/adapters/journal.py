"""A small durable map: the newest value of each key, in one file that is only appended to.

One line for each change, with a checksum: a line that was cut short by the death of the writer is ignored, and the
value before it holds. The file is rewritten, atomically, when most of it is out of date. One open file and one
``write`` for each change keep it cheap where opening and renaming files is slow. The values stay in the file: in
memory is only where they are, in arrays, since most keys are of kernels that have ended and an object of each would
keep a part of the memory of the peak in which it lived (docs/decisions/0016).
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from array import array
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path

from ai.backend.infra.atomic_write import write_atomically

log = logging.getLogger(__name__)
_SMALL = 1024 * 1024
"""Below this size a file is never rewritten."""
_NAME = 16


class Journal:
    """Keys are text, values are JSON documents as bytes without a line break."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places = _Places()
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
        return None if place is None else _value(self._line_at(*place))

    def put(self, key: str, value: bytes) -> None:
        """Raises OSError if it cannot be written; the old value then holds."""
        old = self.get(key)
        if old != value:
            start = self._end()
            self._append(_line(key, value))
            self._note(key, start)
            self._rewrite_if_old()

    def delete(self, key: str) -> None:
        """Safe without such a key."""
        if self._places.get(key) is not None:
            self._append(_line(key, b""))
            self._live -= self._places.pop(key)
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

    def _end(self) -> int:
        self._file()
        return self._size

    def _line_at(self, start: int, length: int) -> bytes:
        return os.pread(self._file(), length - 1, start)

    def _note(self, key: str, start: int) -> None:
        """The newest value of the key is on the line that begins there and ends the file."""
        self._live += self._size - start - self._places.pop(key)
        self._places.add(key, start, self._size - start)

    def _rewrite_if_old(self) -> None:
        if self._size > max(_SMALL, 4 * self._live):
            values: dict[str, bytes] = {}
            for start, length in self._places:
                _replay(self._line_at(start, length), values)
            self._rewrite(values)

    def _rewrite(self, values: Mapping[str, bytes]) -> None:
        lines = [_line(key, value) for key, value in values.items()]
        write_atomically(self._path, b"".join(lines))
        self.close()
        self._places, self._live, self._size = _Places(), 0, 0
        for line, key in zip(lines, values, strict=True):
            self._size += len(line)
            self._note(key, self._size - len(line))


class _Places:
    """Where the line of each key begins, and its length. Finding one takes microseconds for thousands."""

    def __init__(self) -> None:
        self._names = bytearray()
        self._starts = array("Q")
        self._lengths = array("Q")

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._lengths, strict=True)

    def get(self, key: str) -> tuple[int, int] | None:
        place = self._find(key)
        return None if place < 0 else (self._starts[place], self._lengths[place])

    def add(self, key: str, start: int, length: int) -> None:
        """A key that is not there."""
        self._names += _name(key)
        self._starts.append(start)
        self._lengths.append(length)

    def pop(self, key: str) -> int:
        """The length of its line; 0 without such a key."""
        place = self._find(key)
        if place < 0:
            return 0
        del self._names[_NAME * place : _NAME * (place + 1)]
        del self._starts[place]
        return self._lengths.pop(place)

    def _find(self, key: str) -> int:
        wanted = _name(key)
        found = self._names.find(wanted)
        while found % _NAME and found >= 0:  # two names may hold a third one between them
            found = self._names.find(wanted, found + 1)
        return found // _NAME


def _name(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=_NAME).digest()


def _value(line: bytes) -> bytes:
    return line.split(b" ", 2)[2]


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
