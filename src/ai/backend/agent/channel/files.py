"""Transfers files of a session through its runner, which has the rights of the session's user."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from ai.backend.agent.channel.channel import Frame, KernelChannel
from ai.backend.common.errors import DeadlineExceeded, LimitExceeded, RunError
from ai.backend.common.wire.execution import FileBlob, FileEntry, FileListing, TarFile

_CHUNK = 1024 * 1024
"""Bytes of a file in one frame; a frame is at most 8 MiB and base64 adds a third."""
_KINDS = frozenset({"file", "directory", "link"})


async def upload(channel: KernelChannel, files: Sequence[FileBlob], timeout_s: float) -> None:
    """Writes files one after the other, each whole or not at all. Raises the runner's error, or DeadlineExceeded."""
    try:
        async with asyncio.timeout(timeout_s):
            for file in files:
                await _write(channel, file, timeout_s)
    except TimeoutError:
        raise DeadlineExceeded(f"the files were not written within {timeout_s:g} s") from None


async def _write(channel: KernelChannel, file: FileBlob, timeout_s: float) -> None:
    for offset in range(0, max(1, len(file.data)), _CHUNK):
        part = file.data[offset : offset + _CHUNK]
        frame = {
            "t": "file-write",
            "path": file.path,
            "data": base64.b64encode(part).decode(),
            "offset": offset,
            "last": offset + _CHUNK >= len(file.data),
        }
        if file.mode is not None:
            frame["mode"] = file.mode
        await channel.request(frame, timeout_s)


async def download(channel: KernelChannel, paths: Sequence[str], max_bytes: int, timeout_s: float) -> list[TarFile]:
    """Returns each path as one tar archive. Raises the runner's error, or LimitExceeded over ``max_bytes`` in all."""
    frame = {"t": "file-read", "paths": list(paths), "max_bytes": max_bytes}
    _, chunks = await channel.request(frame, timeout_s)
    archives = _assemble(chunks, len(paths), max_bytes)
    return [
        TarFile(name=PurePosixPath(path).name or "root", tar=archive)
        for path, archive in zip(paths, archives, strict=True)
    ]


def _assemble(chunks: Sequence[Frame], count: int, max_bytes: int) -> list[bytes]:
    parts: dict[int, list[bytes]] = {}
    size = 0
    for chunk in chunks:
        try:
            data = base64.b64decode(str(chunk.get("data", "")))
        except binascii.Error as e:
            raise RunError("the runner sent a file that is not base64") from e
        size += len(data)
        if size > 2 * max_bytes + count * 20_480:  # the runner counts contents; tar adds headers and padding
            raise LimitExceeded(f"the files are larger than {max_bytes} bytes", data={"max_bytes": max_bytes})
        parts.setdefault(int(chunk.get("index", 0)), []).append(data)
    if sorted(parts) != list(range(count)):
        raise RunError("the runner did not send every file")
    return [b"".join(parts[i]) for i in range(count)]


async def list_directory(channel: KernelChannel, path: str, timeout_s: float) -> FileListing:
    """Returns the entries of a directory; ``errors`` says why the list is incomplete."""
    data, _ = await channel.request({"t": "file-list", "path": path}, timeout_s)
    entries = [_entry(item) for item in data.get("entries") or () if isinstance(item, dict)]
    errors = "the directory has more entries than can be listed" if data.get("truncated") else ""
    return FileListing(entries=entries, folder_path=str(data.get("path", path)), errors=errors)


def _entry(item: dict[str, Any]) -> FileEntry:
    kind = item.get("type")
    return FileEntry(
        filename=str(item.get("name", "")),
        size=int(item.get("size", 0)),
        mode=str(item.get("mode", "")),
        mtime=float(item.get("mtime", 0.0)),
        kind=kind if kind in _KINDS else "other",
    )
