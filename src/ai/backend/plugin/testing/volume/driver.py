"""Driving a volume in tests: the least that it takes to put a file and to look at it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any
from uuid import uuid4

from ai.backend.common.volume_paths import FolderPath, QuotaScopeId, QuotaScopeKind, VFolderId
from ai.backend.plugin.volume import AbstractVolume, UploadRecord

AWKWARD_NAMES = ("-rf", "a b", 'q"uote', "new\nline", "é", "e\u0301", "CASE", "case", "*", "~", "한글", "\t", "x" * 255)
TOP = FolderPath()


def at(text: str) -> FolderPath:
    return FolderPath.parse(text)


def some_folder() -> VFolderId:
    return VFolderId(QuotaScopeId(QuotaScopeKind.USER, uuid4()), uuid4())


async def eventually(condition: Any, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not (await result if isinstance(result := condition(), Awaitable) else result):
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


def nothing_is_named(name: str, below: Path) -> bool:
    """At any depth; find(1) fails where a tree changes under it."""
    search = subprocess.run(["find", below, "-name", name, "-print", "-quit"], capture_output=True, check=False)
    return search.returncode == 0 and not search.stdout


def remove_anyhow(path: Path) -> None:
    """Also a tree that is too deep for pytest to remove."""
    subprocess.run(["rm", "-rf", path], check=False)


async def put(volume: AbstractVolume, folder: VFolderId, path: str, content: bytes) -> None:
    """A file by an upload."""
    record = UploadRecord(session=uuid4().hex, folder=folder, path=at(path), size=len(content))
    await volume.create_upload(record)
    upload = volume.open_upload(folder, record.session)
    try:
        await asyncio.to_thread(upload.write, content)
        await asyncio.to_thread(upload.publish, at(path))
    finally:
        upload.close()


async def read(volume: AbstractVolume, folder: VFolderId, path: str) -> bytes:
    file = await volume.open_file(folder, at(path))
    try:
        return os.pread(file.fd, file.size, 0)
    finally:
        file.close()


async def names(volume: AbstractVolume, folder: VFolderId, path: str = ".", *, limit: int = 1000) -> list[str]:
    """Of all pages."""
    listed: list[str] = []
    cursor: str | None = None
    while True:
        page = await volume.list_directory(folder, at(path), limit=limit, cursor=cursor)
        listed += [entry.name for entry in page.entries]
        if (cursor := page.cursor) is None:
            return listed
