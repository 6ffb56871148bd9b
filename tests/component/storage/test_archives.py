"""Archives that hostile or slow clients ask for (issue 13, security.md 5)."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import tempfile
import tracemalloc
import zipfile
from contextlib import AbstractContextManager

import aiohttp
import pytest

from ai.backend.storage.transfers import file_response
from ai.backend.storage.transfers.archive import MAX_ARCHIVES_PER_REQUESTER, ArchiveSlots
from tests.support.storage_proxy import Caller


async def _ask(caller: Caller, vfid: str, requester: str) -> aiohttp.ClientResponse:
    """Begins to download an archive of the folder and reads nothing of it."""
    answer = await caller.ask(
        "POST", "/folder/file/download", vfid=vfid, relpath=".", archive=True, requester=requester
    )
    return await caller.http.get(f"{answer.json['url']}?token={answer.json['token']}")


async def _folders(caller: Caller) -> tuple[str, str]:
    """Returns a folder whose archive fills every buffer, and one with a small file."""
    large, small = await caller.folder(), await caller.folder()
    with (await caller.inside(large) / "large").open("wb") as file:
        file.truncate(1 << 30)
    await caller.put(small, "small", b"x")
    return large, small


async def test_unread_archives_hinder_nobody_else(caller: Caller) -> None:
    """Eight of one user took all threads."""
    large, small = await _folders(caller)
    responses = [await _ask(caller, large, user) for user in ("a", "b", "c") for _ in range(MAX_ARCHIVES_PER_REQUESTER)]
    assert {response.status for response in responses} == {200}
    async with asyncio.timeout(30), await _ask(caller, small, "d") as response:
        assert zipfile.ZipFile(io.BytesIO(await response.read())).namelist() == ["small"]
    async with await _ask(caller, small, "a") as refusal:
        assert (refusal.status, (await refusal.json())["type"].rpartition("/")[2]) == (429, "rate-limit-exceeded")
    for response in responses:
        response.close()


async def test_an_unread_archive_ends(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[ArchiveSlots] = []
    take = ArchiveSlots.take

    def noted_take(slots: ArchiveSlots, requester: str) -> AbstractContextManager[None]:
        taken.append(slots)
        return take(slots, requester)

    monkeypatch.setattr(ArchiveSlots, "take", noted_take)
    monkeypatch.setattr(file_response, "_WRITE_TIMEOUT_S", 0.2)
    large, small = await _folders(caller)
    responses = [await _ask(caller, large, "a") for _ in range(MAX_ARCHIVES_PER_REQUESTER)]
    for _ in range(600):
        if not taken[0].in_use:
            break
        await asyncio.sleep(0.1)
    async with await _ask(caller, small, "a") as response:
        assert response.status == 200
    for response in responses:
        with pytest.raises((aiohttp.ClientPayloadError, ConnectionError)):
            await asyncio.wait_for(response.read(), 30)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_an_archive_takes_little_memory(caller: Caller) -> None:
    """Each name of 3.7 KB was kept until the end; and paths were as long as a directory can be deep."""
    vfid = await caller.folder()
    deep = await caller.inside(vfid)
    for _ in range(14):
        deep /= "d" * 250
        deep.mkdir()
    for number in range(8_000):
        (deep / str(number)).touch()
    parent = os.open(deep, os.O_DIRECTORY)
    for _ in range(10):
        os.mkdir("e" * 250, dir_fd=parent)
        child = os.open("e" * 250, os.O_DIRECTORY, dir_fd=parent)
        os.close(parent)
        parent = child
    os.close(parent)
    url = await caller.download_url(vfid, ".", archive=True)
    tracemalloc.start()
    try:
        async with caller.http.get(url) as response:
            with tempfile.TemporaryFile() as file:
                async for part in response.content.iter_any():
                    file.write(part)
                peak_bytes = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                names = zipfile.ZipFile(file).namelist()
    finally:
        tracemalloc.stop()
    assert len(names) == 14 + 8_000 + 2
    assert max(map(len, names)) == 16 * 251
    assert peak_bytes < 24 << 20
