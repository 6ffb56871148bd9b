"""Transfers files of a session through its runner, which has the rights of the session's user."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from ai.backend.agent.channel.channel import Chunk, KernelChannel
from ai.backend.common.errors import DeadlineExceeded, LimitExceeded, RunError
from ai.backend.common.wire.execution import FileBlob, FileEntry, FileListing, TarFile

_CHUNK_BYTES = 1024 * 1024
"""Bytes of a file in one frame; a frame is at most 8 MiB and base64 adds a third."""
_ENTRY_KINDS = frozenset({"file", "directory", "link"})


async def upload(channel: KernelChannel, files: Sequence[FileBlob], timeout_s: float) -> None:
    """Uploads files one after the other, each whole or not at all. Raises the runner's error, or DeadlineExceeded."""
    try:
        async with asyncio.timeout(timeout_s):
            for file in files:
                await _upload_file(channel, file, timeout_s)
    except TimeoutError:
        raise DeadlineExceeded(f"the files were not written within {timeout_s:g} s") from None


async def _upload_file(channel: KernelChannel, file: FileBlob, timeout_s: float) -> None:
    for offset in range(0, max(1, len(file.data)), _CHUNK_BYTES):
        file_part = file.data[offset : offset + _CHUNK_BYTES]
        frame = {
            "t": "file-write",
            "path": file.path,
            "data": base64.b64encode(file_part).decode(),
            "offset": offset,
            "last": offset + _CHUNK_BYTES >= len(file.data),
        }
        if file.mode is not None:
            frame["mode"] = file.mode
        await channel.request(frame, timeout_s)


async def download(channel: KernelChannel, paths: Sequence[str], max_bytes: int, timeout_s: float) -> list[TarFile]:
    """Downloads files and folders of a session, and returns one tar archive for each path.

    Raises the runner's error, or LimitExceeded over ``max_bytes`` in all.
    """
    frame = {"t": "file-read", "paths": list(paths), "max_bytes": max_bytes}
    _, chunks = await channel.request(frame, timeout_s, chunk_space=2 * _archive_limit(len(paths), max_bytes))
    archives = _assemble_archives(chunks, len(paths), max_bytes)
    return [
        TarFile(name=PurePosixPath(path).name or "root", tar=archive)
        for path, archive in zip(paths, archives, strict=True)
    ]


def _archive_limit(count: int, max_bytes: int) -> int:
    """Returns the largest size of all archives of a download together, with the headers and the padding of tar.

    The runner's limit ``max_bytes`` only counts the contents.
    """
    return 2 * max_bytes + count * 20_480


def _assemble_archives(chunks: Sequence[Chunk], count: int, max_bytes: int) -> list[bytes]:
    archive_parts: dict[int, list[bytes]] = {}
    total_bytes = 0
    for archive_index, encoded_chunk in chunks:
        try:
            chunk_data = base64.b64decode(encoded_chunk)
        except binascii.Error as e:
            raise RunError("the runner sent a file that is not base64") from e
        total_bytes += len(chunk_data)
        if total_bytes > _archive_limit(count, max_bytes):
            raise LimitExceeded(f"the files are larger than {max_bytes} bytes", data={"max_bytes": max_bytes})
        archive_parts.setdefault(archive_index, []).append(chunk_data)
    if sorted(archive_parts) != list(range(count)):
        raise RunError("the runner did not send every file")
    return [b"".join(archive_parts[archive_index]) for archive_index in range(count)]


async def list_directory(channel: KernelChannel, path: str, timeout_s: float) -> FileListing:
    """Returns the entries of a directory; ``errors`` says why the list is incomplete."""
    reply_data, _ = await channel.request({"t": "file-list", "path": path}, timeout_s)
    entries = [
        _file_entry(entry_data) for entry_data in reply_data.get("entries") or () if isinstance(entry_data, dict)
    ]
    error_texts = "the directory has more entries than can be listed" if reply_data.get("truncated") else ""
    return FileListing(entries=entries, folder_path=str(reply_data.get("path", path)), errors=error_texts)


def _file_entry(entry_data: dict[str, Any]) -> FileEntry:
    entry_kind = entry_data.get("type")
    return FileEntry(
        filename=str(entry_data.get("name", "")),
        size=int(entry_data.get("size", 0)),
        mode=str(entry_data.get("mode", "")),
        mtime=float(entry_data.get("mtime", 0.0)),
        kind=entry_kind if entry_kind in _ENTRY_KINDS else "other",
    )
