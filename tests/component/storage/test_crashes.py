"""The proxy is killed at every point that it names, and started again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest

from ai.backend.storage.crash_points import CLONE, DELETE, RENAME, UPLOAD
from tests.support.cluster import wait_until
from tests.support.storage_proxy import Caller, ProxyProcess

DATA = os.urandom(3 << 20)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ProxyProcess]:
    process = ProxyProcess(tmp_path)
    yield process
    process.stop(kill=True)


def left_over(process: ProxyProcess) -> list[str]:
    """What lies on the volume besides folders and records of uploads that have ended."""
    volume = process.root / "volume1"
    hidden = [p for name in (".clones", ".trash", ".uploads") for p in volume.glob(f"*/{name}/*")]
    return [str(p.relative_to(volume)) for p in hidden if p.suffix != ".json" or p.parent.name != ".uploads"]


async def die(process: ProxyProcess, asking: asyncio.Task[object]) -> None:
    with pytest.raises(aiohttp.ClientError):
        await asking
    assert await asyncio.to_thread(process.wait_killed)


@pytest.mark.parametrize("point", [*(f"{point}:2" for point in UPLOAD), "upload.written:4"])
async def test_an_upload_goes_on_at_the_right_byte(
    process: ProxyProcess, http: aiohttp.ClientSession, point: str
) -> None:
    """The first passage of each point is that of the old file."""
    caller = Caller(http, process.manager_url)
    process.start(point)
    vfid = await caller.folder()
    await caller.put(vfid, "file", b"old")
    inside = await caller.inside(vfid)
    url = await caller.upload_url(vfid, "file", len(DATA))
    await die(process, asyncio.create_task(caller.patch(url, 0, DATA)))
    assert (inside / "file").read_bytes() in (b"old", DATA)
    process.start()
    offset = int((await caller.head(url)).headers["Upload-Offset"])
    assert offset == len(DATA) or point.startswith("upload.written")
    assert offset > 0
    if offset < len(DATA):  # else no client sends anything more
        answer = await caller.patch(url, offset, DATA[offset:])
        assert (answer.status, answer.headers["Upload-Offset"]) == (204, str(len(DATA)))
    assert (inside / "file").read_bytes() == DATA
    assert os.listdir(inside) == ["file"]
    assert left_over(process) == []


async def test_bytes_without_their_checksum_do_not_count_after_a_crash(
    process: ProxyProcess, http: aiohttp.ClientSession
) -> None:
    import base64
    import hashlib

    caller = Caller(http, process.manager_url)
    process.start("upload.written:2")
    vfid = await caller.folder()
    url = await caller.upload_url(vfid, "file", len(DATA))
    assert (await caller.patch(url, 0, DATA[:1000])).status == 204
    checksum = base64.b64encode(hashlib.sha256(DATA[1000:]).digest()).decode()
    headers = {"Upload-Checksum": f"sha256 {checksum}"}
    await die(process, asyncio.create_task(caller.patch(url, 1000, DATA[1000:], **headers)))
    process.start()
    assert (await caller.head(url)).headers["Upload-Offset"] == "1000"
    assert (await caller.patch(url, 1000, DATA[1000:], **headers)).status == 204
    assert (await caller.inside(vfid) / "file").read_bytes() == DATA


@pytest.mark.parametrize("point", CLONE)
async def test_a_clone_is_taken_up_again(process: ProxyProcess, http: aiohttp.ClientSession, point: str) -> None:
    caller = Caller(http, process.manager_url)
    process.start(point)
    source, target = await caller.folder(), f"user:{uuid4()}/{uuid4().hex}"
    for n in range(3):
        await caller.put(source, f"d/{n}", DATA[: 1000 * n])
    body = {"src_volume": "volume1", "src_vfid": source, "dst_volume": "volume1", "dst_vfid": target}

    async def clone() -> None:
        await caller.ask("POST", "/folder/clone", **body)
        while True:
            await caller.ask("GET", "/volumes")
            await asyncio.sleep(0.01)

    await die(process, asyncio.create_task(clone()))
    scope = process.root / "volume1" / target[5:41].replace("-", "")
    assert point == "clone.published" or not list(scope.glob("??/??/*"))
    process.start()
    final = scope / target[42:44] / target[44:46] / target[46:]
    wait_until(final.is_dir, what="the clone")
    assert {p.name: p.read_bytes() for p in (final / "d").iterdir()} == {str(n): DATA[: 1000 * n] for n in range(3)}
    wait_until(lambda: left_over(process) == [], what="nothing being left over")
    answer = await caller.ask("POST", "/folder/clone", **body)
    assert answer.status == 202


@pytest.mark.parametrize("point", DELETE)
async def test_what_is_deleted_goes_and_leaves_nothing(
    process: ProxyProcess, http: aiohttp.ClientSession, point: str
) -> None:
    caller = Caller(http, process.manager_url)
    process.start(point)
    vfid = await caller.folder()
    inside = await caller.inside(vfid)
    for name in ("a/b/c", "a/x", "y"):
        await caller.put(vfid, name, b"x")
    if point == "delete.one":
        request = caller.ask("POST", "/folder/file/delete", vfid=vfid, relpaths=["a", "y"], recursive=True)
        await die(process, asyncio.create_task(request))
        assert os.listdir(inside) == ["y"]
        process.start()
        await caller.ask("POST", "/folder/file/delete", vfid=vfid, relpaths=["a", "y"], recursive=True)
        assert os.listdir(inside) == []
    else:
        await die(process, asyncio.create_task(caller.ask("POST", "/folder/delete", vfid=vfid)))
        assert inside.exists() == (point == "delete.unmarked")
        process.start()
        assert (await caller.ask("POST", "/folder/delete", vfid=vfid)).status == 204
        assert not inside.exists()
    wait_until(lambda: left_over(process) == [], what="nothing being left over")


@pytest.mark.parametrize("point", RENAME)
async def test_a_renamed_file_has_one_name(process: ProxyProcess, http: aiohttp.ClientSession, point: str) -> None:
    caller = Caller(http, process.manager_url)
    process.start(point)
    vfid = await caller.folder()
    inside = await caller.inside(vfid)
    await caller.put(vfid, "a", b"x")
    request = caller.ask("POST", "/folder/file/rename", vfid=vfid, relpath="a", new_name="b")
    await die(process, asyncio.create_task(request))
    assert os.listdir(inside) == ["b"]
    process.start()
    assert (await caller.ask("POST", "/folder/file/rename", vfid=vfid, relpath="a", new_name="b")).status == 404


async def test_killed_at_any_moment_nothing_is_half_visible(process: ProxyProcess, http: aiohttp.ClientSession) -> None:
    """SIGKILL at times that nobody chose, while eight uploads, a clone and deletions run."""
    caller = Caller(http, process.manager_url)
    process.start()
    vfid, doomed = await caller.folder(), await caller.folder()
    inside = await caller.inside(vfid)
    urls = {n: await caller.upload_url(vfid, f"f{n}", len(DATA)) for n in range(8)}

    async def push(n: int) -> None:
        offset = int((await caller.head(urls[n])).headers["Upload-Offset"])
        while offset < len(DATA):
            answer = await caller.patch(urls[n], offset, DATA[offset : offset + 200_000])
            if answer.status != 204:
                return
            offset = int(answer.headers["Upload-Offset"])

    for life in range(4):
        work = [asyncio.create_task(push(n)) for n in range(8)]
        await asyncio.sleep(0.02 + 0.04 * life)
        process.stop(kill=True)
        await asyncio.gather(*work, return_exceptions=True)
        assert all((inside / name).read_bytes() == DATA for name in os.listdir(inside))
        process.start()
    await asyncio.gather(*(push(n) for n in range(8)))
    assert sorted(os.listdir(inside)) == [f"f{n}" for n in range(8)]
    assert all((inside / name).read_bytes() == DATA for name in os.listdir(inside))
    assert (await caller.ask("POST", "/folder/delete", vfid=doomed)).status == 204
    wait_until(lambda: left_over(process) == [], what="nothing being left over")
