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

_READ_BYTES = 1 << 20
_AHEAD = 4
_FIRST_YEAR = 1980
_LAST_S = 4_354_732_799.0  # the end of 2107 in any time zone


class _Ended(Exception):
    pass


class _Sink:
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
        if self._size >= _READ_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        if self._size:
            self.put(b"".join(self._parts))
            self._parts, self._size = [], 0

    def put(self, item: bytes | None) -> None:
        if self.has_ended:
            raise _Ended
        asyncio.run_coroutine_threadsafe(self._queue.put(item), self._loop).result()


async def stream_zip(
    volume: AbstractVolume, folder: VFolderId, paths: Sequence[FolderPath], threads: ThreadPoolExecutor
) -> AsyncGenerator[bytes, None]:
    """Yields an uncompressed zip of the paths, each under its last part; links stay links, special files are omitted.

    Memory grows with the number of entries (some hundred bytes each), which the end of a zip lists. Raises
    BackendError: before the first part, if a path does not exist; files that vanish later are omitted.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | None] = asyncio.Queue(_AHEAD)
    sink = _Sink(loop, queue)
    work = loop.run_in_executor(threads, _write_zip, volume, folder, paths, sink)
    try:
        while (part := await _next(queue, work)) is not None:
            yield part
        await work
    finally:
        sink.has_ended = True
        while not work.done():
            with suppress(asyncio.QueueEmpty):
                queue.get_nowait()
            await asyncio.sleep(0.001)
        with suppress(_Ended, BackendError, OSError):
            work.result()


async def _next(queue: asyncio.Queue[bytes | None], work: asyncio.Future[None]) -> bytes | None:
    getting = asyncio.ensure_future(queue.get())
    waiting: set[asyncio.Future[Any]] = {getting, work}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if getting.done():
        return getting.result()
    getting.cancel()
    if not queue.empty():
        return queue.get_nowait()
    work.result()
    return None


def _write_zip(volume: AbstractVolume, folder: VFolderId, paths: Sequence[FolderPath], sink: _Sink) -> None:
    target = cast("IO[bytes]", sink)  # writing a zip needs only these methods of a file
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        links: set[str] = set()
        for path in paths:
            above = len(path.parts[:-1])
            with volume.open_tree(folder, [path]) as entries:
                for entry in entries:
                    name = "/".join(entry.path.parts[above:])
                    if name and not _is_below(name, links):
                        if entry.entry.kind == FileKind.SYMBOLIC_LINK:
                            links.add(name)
                        _add(archive, name, entry)
    sink.flush()
    sink.put(None)


def _is_below(name: str, links: set[str]) -> bool:
    """Returns whether unpacking would follow a link of this archive: a directory may have become one meanwhile."""
    parts = name.split("/")
    return bool(links) and any("/".join(parts[:depth]) in links for depth in range(1, len(parts) + 1))


def _add(archive: zipfile.ZipFile, name: str, item: ArchiveEntry) -> None:
    entry = item.entry
    when = time.localtime(min(max(0.0, entry.modified), _LAST_S))[:6]
    info = zipfile.ZipInfo(name, when if when[0] >= _FIRST_YEAR else (_FIRST_YEAR, 1, 1, 0, 0, 0))
    info.external_attr = (entry.mode & 0xFFFF) << 16
    if entry.kind == FileKind.DIRECTORY:
        info.filename += "/"
        archive.writestr(info, b"")
    elif entry.kind == FileKind.SYMBOLIC_LINK:
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, entry.symlink_target)
    elif entry.kind == FileKind.FILE:
        try:
            file = item.open()
        except BackendError:
            return
        try:
            with archive.open(info, "w", force_zip64=True) as target:
                while data := os.read(file.fd, _READ_BYTES):
                    target.write(data)
        finally:
            file.close()
