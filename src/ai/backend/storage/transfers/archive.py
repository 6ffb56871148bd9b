"""Streams files and directories as one zip."""

from __future__ import annotations

import asyncio
import os
import stat
import time
import zipfile
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any, cast

from ai.backend.common.errors import BackendError
from ai.backend.common.volume_paths import FolderPath, VFolderId
from ai.backend.plugin.volume import AbstractVolume, ArchiveEntry, FileKind

_READ_CHUNK_BYTES = 1 << 20
_MAX_QUEUED_PARTS = 4
_MIN_ZIP_YEAR = 1980
_MAX_ZIP_TIME_S = 4_354_732_799.0  # the end of 2107 in any time zone


class _StreamEnded(Exception):
    pass


class _QueueSink:
    """A file without seek that writes to a bounded queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[bytes | None]) -> None:
        self._loop = loop
        self._queue = queue
        self._parts: list[bytes] = []
        self._size = 0
        self.has_ended = False

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        self._size += len(data)
        if self._size >= _READ_CHUNK_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        if self._size:
            self.put(b"".join(self._parts))
            self._parts, self._size = [], 0

    def put(self, part: bytes | None) -> None:
        if self.has_ended:
            raise _StreamEnded
        asyncio.run_coroutine_threadsafe(self._queue.put(part), self._loop).result()


async def stream_zip(
    volume: AbstractVolume, folder: VFolderId, paths: Sequence[FolderPath], threads: ThreadPoolExecutor
) -> AsyncGenerator[bytes, None]:
    """Yields an uncompressed zip of the paths, each under its last part; links stay links, special files are omitted.

    Memory grows with the number of entries (some hundred bytes each), which the end of a zip lists. Raises
    BackendError: before the first part, if a path does not exist; files that vanish later are omitted.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | None] = asyncio.Queue(_MAX_QUEUED_PARTS)
    sink = _QueueSink(loop, queue)
    writing = loop.run_in_executor(threads, _write_zip, volume, folder, paths, sink)
    try:
        while (part := await _next_part(queue, writing)) is not None:
            yield part
        await writing
    finally:
        sink.has_ended = True
        while not writing.done():
            with suppress(asyncio.QueueEmpty):
                queue.get_nowait()
            await asyncio.sleep(0.001)
        with suppress(_StreamEnded, BackendError, OSError):
            writing.result()


async def _next_part(queue: asyncio.Queue[bytes | None], writing: asyncio.Future[None]) -> bytes | None:
    next_item = asyncio.ensure_future(queue.get())
    pending: set[asyncio.Future[Any]] = {next_item, writing}
    await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    if next_item.done():
        return next_item.result()
    next_item.cancel()
    if not queue.empty():
        return queue.get_nowait()
    writing.result()
    return None


def _write_zip(volume: AbstractVolume, folder: VFolderId, paths: Sequence[FolderPath], sink: _QueueSink) -> None:
    zip_file = cast("IO[bytes]", sink)  # writing a zip needs only these methods of a file
    with zipfile.ZipFile(zip_file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        link_names: set[str] = set()
        for path in paths:
            parent_depth = len(path.parts[:-1])
            with volume.open_tree(folder, [path]) as entries:
                for entry in entries:
                    name = "/".join(entry.path.parts[parent_depth:])
                    if name and not _is_below_link(name, link_names):
                        if entry.entry.kind == FileKind.SYMBOLIC_LINK:
                            link_names.add(name)
                        _add_entry(archive, name, entry)
    sink.flush()
    sink.put(None)


def _is_below_link(name: str, link_names: set[str]) -> bool:
    """Returns True if unpacking a name would follow a link of this archive: a directory may have become a link."""
    parts = name.split("/")
    return bool(link_names) and any("/".join(parts[:depth]) in link_names for depth in range(1, len(parts) + 1))


def _add_entry(archive: zipfile.ZipFile, name: str, archive_entry: ArchiveEntry) -> None:
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
        finally:
            file.close()
