"""tuspy, a tus client that is not ours (tus 1.0: core protocol, creation, checksum, expiration, termination)."""

from __future__ import annotations

import asyncio
import io
import os
from email.utils import parsedate_to_datetime

import pytest
from tusclient.client import TusClient
from tusclient.exceptions import TusCommunicationError
from tusclient.uploader.uploader import Uploader

from tests.support.storage_proxy import TUS, Caller

DATA = os.urandom(1_300_000)


def uploader_of(endpoint: str, data: bytes, url: str | None = None, *, checksum: bool = False) -> Uploader:
    """Args: url: of an upload that was begun."""
    stream = io.BytesIO(data)
    return TusClient(endpoint).uploader(file_stream=stream, chunk_size=500_000, url=url, upload_checksum=checksum)


async def test_tuspy_creates_and_uploads(caller: Caller) -> None:
    vfid = await caller.folder()
    url = await caller.upload_url(vfid, "dir/file", len(DATA))
    await asyncio.to_thread(uploader_of(url, DATA).upload)
    assert (await caller.inside(vfid) / "dir/file").read_bytes() == DATA


async def test_tuspy_goes_on_where_another_client_stopped(caller: Caller) -> None:
    vfid = await caller.folder()
    url = await caller.upload_url(vfid, "file", len(DATA))
    first = uploader_of(url, DATA)
    await asyncio.to_thread(first.upload, 500_000)
    assert first.offset == 500_000
    assert (await caller.patch(url, 500_000, DATA[500_000:600_000])).status == 204
    second = await asyncio.to_thread(uploader_of, url, DATA, first.url)
    assert second.offset == 600_000
    await asyncio.to_thread(second.upload)
    assert (await caller.inside(vfid) / "file").read_bytes() == DATA


async def test_tuspy_sends_checksums(caller: Caller) -> None:
    vfid = await caller.folder()
    url = await caller.upload_url(vfid, "file", len(DATA))
    await asyncio.to_thread(uploader_of(url, DATA, checksum=True).upload)
    assert (await caller.inside(vfid) / "file").read_bytes() == DATA


async def test_tuspy_is_told_of_wrong_sizes_and_dead_uploads(caller: Caller) -> None:
    vfid = await caller.folder()
    url = await caller.upload_url(vfid, "file", len(DATA))
    with pytest.raises(TusCommunicationError) as refused:
        await asyncio.to_thread(uploader_of(url, DATA + b"x").upload)
    assert refused.value.status_code == 400
    uploader = uploader_of(url, DATA)
    await asyncio.to_thread(uploader.upload, 500_000)
    assert (await caller.send("DELETE", url, headers=TUS)).status == 204
    with pytest.raises(TusCommunicationError) as refused:
        await asyncio.to_thread(uploader.upload)
    assert refused.value.status_code == 404
    with pytest.raises(TusCommunicationError):
        await asyncio.to_thread(uploader_of, url, DATA, uploader.url)


async def test_every_answer_has_what_tus_asks_for(caller: Caller) -> None:
    vfid = await caller.folder()
    url = await caller.upload_url(vfid, "file", 3)
    options = await caller.send("OPTIONS", url)
    assert set(options.headers["Tus-Extension"].split(",")) >= {"creation", "checksum", "termination", "expiration"}
    created = await caller.send("POST", url, headers={**TUS, "Upload-Length": "3", "Upload-Metadata": "filename eA=="})
    head = await caller.head(url)
    patched = await caller.patch(url, 0, b"a")
    for answer in (created, head, patched):
        assert answer.headers["Tus-Resumable"] == "1.0.0"
        assert parsedate_to_datetime(answer.headers["Upload-Expires"]).tzinfo is not None
    assert (await caller.patch(url, 1, b"bc")).status == 204
    assert (await caller.inside(vfid) / "file").read_bytes() == b"abc"
