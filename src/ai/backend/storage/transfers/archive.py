"""Streams files and directories as one zip."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import IO, cast

import msgspec

from ai.backend.common.errors import BackendError, Conflict, RateLimitExceeded
from ai.backend.common.volume_paths import FolderPath, VFolderId
from ai.backend.plugin.volume import AbstractVolume, ArchiveEntry, FileKind

MAX_ARCHIVES_PER_REQUESTER = 4
_READ_CHUNK_BYTES = 1 << 20
_MAX_BYTES_IN_MEMORY = 4 << 20
"""The limit in memory of an archive's directory, and of its unsent bytes; the rest is in temporary files."""
_MAX_LINKS = 200_000
"""The largest number of symbolic links in one archive; the names of all of them are kept in memory."""
_MIN_ZIP_YEAR = 1980
_MAX_ZIP_TIME_S = 4_354_732_799.0  # the end of 2107 in any time zone
_INFO_FIELDS = ("external_attr", "flag_bits", "extract_version", "CRC", "compress_size", "file_size", "header_offset")


class ArchiveSlots:
    """Limits how many archives one requester downloads at once."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    @property
    def in_use(self) -> int:
        """The number of archives on their way to all requesters."""
        return self._counts.total()

    @contextmanager
    def take(self, requester: str) -> Iterator[None]:
        """Takes a slot for the time of the block. Raises RateLimitExceeded."""
        if self._counts[requester] >= MAX_ARCHIVES_PER_REQUESTER:
            raise RateLimitExceeded(
                f"{MAX_ARCHIVES_PER_REQUESTER} archives are on their way to you: try again when one has ended."
            )
        self._counts[requester] += 1
        try:
            yield
        finally:
            self._counts[requester] -= 1
            if not self._counts[requester]:
                del self._counts[requester]


class _UnsentBytes:
    """Buffers the bytes of a zip archive between writing and sending, in memory or in a temporary file.

    It is written like a file without seek.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_MAX_BYTES_IN_MEMORY)  # noqa: SIM115  # closed with the archive
        self.size = 0

    def write(self, data: bytes) -> int:
        self.size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        """Does nothing, since written bytes are read from the same file."""

    def read(self) -> Iterator[bytes]:
        """Yields the bytes that were written since the last call."""
        self._file.seek(0)
        while unsent_data := self._file.read(_READ_CHUNK_BYTES):
            yield unsent_data
        self._file.seek(0)
        self._file.truncate()
        self.size = 0

    def close(self) -> None:
        self._file.close()


class _Entries:
    """Stores the directory entries of a zip archive until the archive's end, in memory or in a temporary file.

    A zip has its directory at its end.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_MAX_BYTES_IN_MEMORY)  # noqa: SIM115  # closed with the archive
        self._count = 0

    def append(self, info: zipfile.ZipInfo) -> None:
        field_values = (info.filename, info.date_time, *(getattr(info, name) for name in _INFO_FIELDS))
        encoded_values = msgspec.msgpack.encode(field_values)
        self._file.write(len(encoded_values).to_bytes(4, "big") + encoded_values)
        self._count += 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[zipfile.ZipInfo]:
        self._file.seek(0)
        while size := self._file.read(4):
            filename, date_time, *values = msgspec.msgpack.decode(self._file.read(int.from_bytes(size, "big")))
            info = zipfile.ZipInfo(filename, tuple(date_time))
            for name, value in zip(_INFO_FIELDS, values, strict=True):
                setattr(info, name, value)
            yield info

    def close(self) -> None:
        self._file.close()


class _NoNames(dict[str, zipfile.ZipInfo]):
    """Discards the names of a zip archive's entries to save memory; `zipfile` needs them only to read an archive."""

    def __setitem__(self, name: str, info: zipfile.ZipInfo) -> None: ...


async def stream_zip(
    volume: AbstractVolume, folder: VFolderId, paths: Sequence[FolderPath], threads: ThreadPoolExecutor
) -> AsyncGenerator[bytes, None]:
    """Yields an uncompressed zip of the paths, each under its last part; links stay links, special files are omitted.

    A thread makes the next part while this one is sent, and none waits for the client. Memory does not grow with the
    entries. Raises BackendError: before the first part, if a path does not exist; files that vanish later are omitted.
    """
    loop = asyncio.get_running_loop()
    parts = _zip_parts(volume, folder, paths)
    next_part = loop.run_in_executor(threads, next, parts, None)
    try:
        while (part := await asyncio.shield(next_part)) is not None:
            next_part = loop.run_in_executor(threads, next, parts, None)
            yield part
    finally:
        await asyncio.wait([next_part])  # a generator that runs cannot be closed
        with suppress(BackendError, OSError):
            next_part.result()
        await loop.run_in_executor(threads, parts.close)


def _zip_parts(volume: AbstractVolume, folder: VFolderId, paths: Sequence[FolderPath]) -> Generator[bytes]:
    unsent, entries = _UnsentBytes(), _Entries()
    archive = zipfile.ZipFile(cast("IO[bytes]", unsent), "w", zipfile.ZIP_STORED, allowZip64=True)
    archive.filelist = cast("list[zipfile.ZipInfo]", entries)
    archive.NameToInfo = _NoNames()
    try:
        for name, entry in _named_entries(volume, folder, paths):
            for _ in _add_entry(archive, name, entry):
                if unsent.size >= _READ_CHUNK_BYTES:
                    yield from unsent.read()
        archive.close()
        yield from unsent.read()
    finally:
        archive.fp = None  # otherwise an interrupted archive would be completed when it is collected
        unsent.close()
        entries.close()


def _named_entries(
    volume: AbstractVolume, folder: VFolderId, paths: Sequence[FolderPath]
) -> Iterator[tuple[str, ArchiveEntry]]:
    """Yields the files and directories below the paths, each with its name in the archive.

    Raises Conflict for too many links.
    """
    link_name_hashes: set[int] = set()
    for path in paths:
        parent_depth = len(path.parts[:-1])
        with volume.open_tree(folder, [path]) as entries:
            for entry in entries:
                name = "/".join(entry.path.parts[parent_depth:])
                if not name or _is_below_link(name, link_name_hashes):
                    continue
                if entry.entry.kind == FileKind.SYMBOLIC_LINK:
                    if len(link_name_hashes) == _MAX_LINKS:
                        raise Conflict(f"There are more than {_MAX_LINKS} symbolic links.")
                    link_name_hashes.add(hash(name))
                yield name, entry


def _is_below_link(name: str, link_name_hashes: set[int]) -> bool:
    """Returns True if unpacking an entry of this name would follow a symbolic link that the archive contains.

    A directory may have become a link. ``link_name_hashes`` has the hashes of the links' names.
    """
    parts = name.split("/")
    return bool(link_name_hashes) and any(
        hash("/".join(parts[:part_count])) in link_name_hashes for part_count in range(1, len(parts) + 1)
    )


def _add_entry(archive: zipfile.ZipFile, name: str, archive_entry: ArchiveEntry) -> Iterator[None]:
    """Adds an entry, and yields whenever a part of it was added."""
    entry = archive_entry.entry
    modified_at = time.localtime(min(max(0.0, entry.modified), _MAX_ZIP_TIME_S))[:6]
    info = zipfile.ZipInfo(name, modified_at if modified_at[0] >= _MIN_ZIP_YEAR else (_MIN_ZIP_YEAR, 1, 1, 0, 0, 0))
    info.external_attr = (entry.mode & 0xFFFF) << 16
    if entry.kind == FileKind.DIRECTORY:
        info.filename += "/"
        archive.writestr(info, b"")
    elif entry.kind == FileKind.SYMBOLIC_LINK:
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, entry.symlink_target)
    elif entry.kind == FileKind.FILE:
        try:
            file = archive_entry.open()
        except BackendError:
            return
        try:
            with archive.open(info, "w", force_zip64=True) as zip_member:
                while data := os.read(file.fd, _READ_CHUNK_BYTES):
                    zip_member.write(data)
                    yield
        finally:
            file.close()
    yield
