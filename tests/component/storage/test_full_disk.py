"""A volume without room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from ai.backend.storage.main import StorageProxy
from tests.support.storage_proxy import TUS, Caller, parsed

MIB = 1 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB and 60 files."""
    place = tmp_path / "volume1"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=60", "tmpfs", place], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"machine: tmpfs cannot be mounted: {done.stderr.decode().strip()[:100]}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
async def caller(small: Path, tmp_path: Path, http: aiohttp.ClientSession) -> AsyncIterator[Caller]:
    proxy = StorageProxy(parsed(tmp_path))
    await proxy.start()
    yield Caller(http, proxy.manager_url)
    await proxy.stop()


@pytest.mark.needs("root")
async def test_a_full_disk_is_507_and_takes_nothing_away(caller: Caller) -> None:
    vfid = await caller.folder()
    await caller.put(vfid, "file", b"old")
    data = os.urandom(10 * MIB)
    url = await caller.upload_url(vfid, "file", len(data))
    answer = await caller.patch(url, 0, data)
    assert (answer.status, answer.json["type"].rpartition("/")[2]) == (507, "storage-full")
    inside = await caller.inside(vfid)
    assert (inside / "file").read_bytes() == b"old"
    offset = int((await caller.head(url)).headers["Upload-Offset"])
    assert 7 * MIB < offset < 8 * MIB
    body = {"src_volume": "volume1", "src_vfid": vfid, "dst_volume": "volume1", "dst_vfid": vfid[:-1] + "0"}
    (inside / "a").write_bytes(b"")
    assert (await caller.ask("POST", "/folder/clone", **body)).status == 202
    assert (await caller.send("DELETE", url, headers=TUS)).status == 204
    await caller.put(vfid, "file", data[: 6 * MIB])
    assert (inside / "file").read_bytes() == data[: 6 * MIB]


def _use_up_names(inside: Path) -> None:
    for n in range(100):
        (inside / str(n)).touch()


def _visible(place: Path) -> list[Path]:
    """All but the records of uploads."""
    return sorted(p for p in place.rglob("*") if p.suffix != ".json")


@pytest.mark.needs("root")
async def test_without_room_for_a_name_everything_that_grows_is_507(caller: Caller, small: Path) -> None:
    vfid = await caller.folder()
    inside = await caller.inside(vfid)
    await caller.put(vfid, "kept", b"kept")
    with pytest.raises(OSError, match="No space"):
        _use_up_names(inside)
    before = _visible(small)
    scope = vfid.partition("/")[0]
    for path, body in (
        ("/folder/create", {"vfid": f"{scope}/{'0' * 32}"}),
        ("/folder/create", {"vfid": f"user:{uuid4()}/{'0' * 32}"}),
        ("/quota-scope", {"qsid": f"project:{uuid4()}"}),
        ("/folder/file/mkdir", {"vfid": vfid, "relpath": "dir"}),
        ("/folder/file/upload", {"vfid": vfid, "relpath": "new", "size": 100}),
        ("/folder/file/upload", {"vfid": vfid, "relpath": "new", "size": 0}),
    ):
        answer = await caller.ask("POST", path, **body)
        assert (answer.status, answer.json["type"].rpartition("/")[2]) == (507, "storage-full"), path
    assert _visible(small) == before
    assert not any(path.suffix in (".data", ".tmp") for path in before)
    answer = await caller.ask("POST", "/folder/file/delete", vfid=vfid, relpaths=[str(n) for n in range(8)])
    assert answer.status == 204
    await caller.put(vfid, "new", b"new")
    assert ((inside / "kept").read_bytes(), (inside / "new").read_bytes()) == (b"kept", b"new")


@pytest.mark.needs("root")
async def test_an_upload_goes_on_when_there_is_room_again(caller: Caller) -> None:
    vfid = await caller.folder()
    inside = await caller.inside(vfid)
    (inside / "ballast").write_bytes(os.urandom(4 * MIB))
    data = os.urandom(6 * MIB)
    url = await caller.upload_url(vfid, "file", len(data))
    assert (await caller.patch(url, 0, data)).status == 507
    offset = int((await caller.head(url)).headers["Upload-Offset"])
    (inside / "ballast").unlink()
    assert (await caller.patch(url, offset, data[offset:])).status == 204
    assert (inside / "file").read_bytes() == data


@pytest.mark.needs("root")
async def test_a_clone_that_does_not_fit_leaves_nothing(caller: Caller, small: Path) -> None:
    import asyncio

    source = await caller.folder()
    for n in range(5):
        await caller.put(source, str(n), os.urandom(MIB))
    target = "user:" + "0" * 8 + "-0000-4000-8000-000000000001/" + "1" * 32
    body = {"src_volume": "volume1", "src_vfid": source, "dst_volume": "volume1", "dst_vfid": target}
    task_id = (await caller.ask("POST", "/folder/clone", **body)).json["bgtask_id"]
    task: dict[str, Any] = {"status": "running", "error": None}
    for _ in range(300):
        task = (await caller.ask("GET", "/task", task_id=task_id)).json
        if task["status"] != "running":
            break
        await asyncio.sleep(0.02)
    assert (task["status"], task["error"] and task["error"]["status"]) == ("failed", 507)
    scope = small / ("0" * 12 + "4000" + "8000" + "0" * 11 + "1")
    for _ in range(300):
        if not list(scope.glob(".*/*")):
            break
        await asyncio.sleep(0.02)
    assert list(scope.glob(".*/*")) == []
    assert list(scope.glob("??")) == []
