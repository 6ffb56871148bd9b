"""The proxy is killed at every point of an import that it names, and asked again; and a disk that is full."""

# tests look at the disk besides the proxy, in the simplest way

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import aiohttp
import pytest

from ai.backend.plugin.object_storage import StorageContext
from ai.backend.storage.crash_points import IMPORT
from ai.backend.storage.main import StorageProxy
from ai.backend.volume.object.s3 import S3Storage
from tests.support.artifacts import ArtifactCaller
from tests.support.fake_hub import FakeHub, Model
from tests.support.s3_server import options, s3_url
from tests.support.storage_proxy import ProxyProcess, parsed

__all__ = ["s3_url"]
FILES = {"README.md": b"# A model", "one": os.urandom(12 << 20), "two/three": os.urandom(500_000), "empty": b""}
HERE: dict[str, Any] = {"allowed-hosts": ["127.0.0.1"]}
Run = Callable[[dict[str, Any]], ProxyProcess]


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    hub = FakeHub()
    hub.models["org/model"] = Model(dict(FILES))
    async with hub.serving():
        yield hub


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    processes: list[ProxyProcess] = []

    def make(tables: dict[str, Any]) -> ProxyProcess:
        processes.append(ProxyProcess(tmp_path, tables))
        return processes[-1]

    yield make
    for process in processes:
        process.stop(kill=True)


def files_in(top: Path) -> dict[str, bytes]:
    return {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()}


async def start(process: ProxyProcess, point: str = "") -> None:
    await asyncio.to_thread(process.start, point)  # the hub is in this process


async def die(process: ProxyProcess, caller: ArtifactCaller, revision: UUID, url: str) -> None:
    """Ask until the point is reached."""
    try:
        await caller.import_hub(revision, url)
        await caller.ended(revision)
    except aiohttp.ClientError:
        pass
    assert await asyncio.to_thread(process.wait_killed)


async def none_or_whole(caller: ArtifactCaller, revision: UUID) -> None:
    answer = await caller.post("/artifacts/mount", revision_id=revision)
    if answer.status == 404:
        return
    assert files_in(Path(answer.json["path"])) == FILES


async def import_again(caller: ArtifactCaller, revision: UUID, hub: FakeHub) -> None:
    await none_or_whole(caller, revision)
    await caller.import_hub(revision, hub.url)
    state = await caller.ended(revision)
    assert (state["phase"], state["error"]) == ("done", None)


ON_ONE_DISK = ("planned", "part:7", "file", "downloaded", "verified", "moved:2", "archived", "published")
BETWEEN_STORAGES = ("transferred", "moved:2", "archived")
REMOVING = ("deleting",)


def test_every_point_is_killed_at() -> None:
    killed = {f"artifact.{point.partition(':')[0]}" for point in (*ON_ONE_DISK, *BETWEEN_STORAGES, *REMOVING)}
    assert set(IMPORT) == killed


@pytest.mark.timeout(240)
async def test_on_one_disk(run: Run, hub: FakeHub, http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """One import whose proxy dies at one point after the other."""
    process = run({"artifacts": HERE})
    caller, revision = ArtifactCaller(http, process.manager_url), uuid4()
    top = tmp_path / "volume1" / ".artifacts"
    for point in ON_ONE_DISK:
        await start(process, f"artifact.{point}")
        await none_or_whole(caller, revision)
        hub.sent.clear()
        hub.requests.clear()
        await die(process, caller, revision, hub.url)
        if point == "downloaded":
            assert hub.sent.get("one", 0) < len(FILES["one"]), "what had come before was fetched again"
        elif point in ON_ONE_DISK[4:]:
            assert hub.sent == {}, point
        if point in ON_ONE_DISK[5:]:
            assert hub.requests == [], "the source was asked for what is all here"
    await start(process, "artifact.deleting")
    await import_again(caller, revision, hub)
    assert files_in(await caller.mounted(revision)) == FILES
    assert {path.partition("/")[0] for path in files_in(top)} == {"artifacts"}
    with pytest.raises(aiohttp.ClientError):
        await caller.post("/artifacts/delete", revision_id=revision)
    assert await asyncio.to_thread(process.wait_killed)
    await start(process)
    assert (await caller.post("/artifacts/mount", revision_id=revision)).status == 404
    assert (await caller.post("/artifacts/delete", revision_id=revision)).status == 204
    assert files_in(top) == {}


@pytest.mark.timeout(240)
async def test_between_storages(
    run: Run, hub: FakeHub, http: aiohttp.ClientSession, tmp_path: Path, s3_url: str
) -> None:
    """Download on S3, verify on a disk, archive on S3: a multipart upload is gone on with after its last part."""
    bucket = options(s3_url, prefix=uuid4().hex)
    stages = {**HERE, "download": "s3", "verify": "volume1", "archive": "s3"}
    process = run({"artifacts": stages, "object-storage": {"s3": {"backend": "s3", "options": bucket}}})
    caller, revision = ArtifactCaller(http, process.manager_url), uuid4()
    await start(process)
    hub.gate.clear()
    hub.held_after = 9 << 20
    await caller.import_hub(revision, hub.url)
    await caller.reaches(revision, 9 << 20)
    await asyncio.to_thread(process.stop, kill=True)
    hub.gate.set()
    hub.sent.clear()
    for point in BETWEEN_STORAGES:
        await start(process, f"artifact.{point}")
        await die(process, caller, revision, hub.url)
        assert hub.sent.get("one", 0) <= len(FILES["one"]) - (5 << 20), "the first part was fetched again"
    await start(process)
    assert (await caller.post("/artifacts/files", revision_id=revision)).status == 404
    await caller.import_hub(revision, hub.url)
    state = await caller.ended(revision)
    assert (state["phase"], state["error"]) == ("done", None)
    assert files_in(tmp_path / "volume1" / ".artifacts") == {}
    storage = S3Storage("s3", bucket, StorageContext())
    await storage.start()
    try:
        keys = [info.key for info in (await storage.list()).objects]
    finally:
        await storage.stop()
    assert {key.partition("/files/")[2] for key in keys} == {*FILES, ""}  # the manifest
    assert {key.partition("/")[0] for key in keys} == {"artifacts"}
    for path, data in FILES.items():
        url = (await caller.post("/artifacts/presign", revision_id=revision, path=path)).json["url"]
        assert (await caller.send("GET", url)).body == data


@pytest.mark.timeout(240)
async def test_at_any_time(run: Run, hub: FakeHub, http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """SIGKILL at times that nobody chose, while three imports run."""
    process = run({"artifacts": HERE})
    caller = ArtifactCaller(http, process.manager_url)
    revisions = [uuid4() for _ in range(3)]
    for life in range(2):
        await start(process)
        for revision in revisions:
            await none_or_whole(caller, revision)
            await caller.import_hub(revision, hub.url)
        await asyncio.sleep(0.1 + 0.6 * life)
        await asyncio.to_thread(process.stop, kill=True)
    await start(process)
    for revision in revisions:
        await import_again(caller, revision, hub)
        assert files_in(await caller.mounted(revision)) == FILES


def mount_small(place: Path) -> None:
    """A file system of 20 MiB."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", place], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"machine: tmpfs cannot be mounted: {done.stderr.decode().strip()[:100]}")


@pytest.mark.needs("root")
async def test_a_full_disk_keeps_what_is_there(hub: FakeHub, http: aiohttp.ClientSession, tmp_path: Path) -> None:
    place = tmp_path / "volume1"
    place.mkdir()
    mount_small(place)
    proxy = StorageProxy(parsed(tmp_path, tables={"artifacts": HERE}))
    try:
        await proxy.start()
        caller, revision = ArtifactCaller(http, proxy.manager_url), uuid4()
        ballast = place / "ballast"
        ballast.write_bytes(bytes(12 << 20))
        error = await caller.failure(revision, hub.url)
        assert (error["status"], error["type"].rpartition("/")[2]) == (507, "storage-full")
        ballast.unlink()
        hub.sent.clear()
        await import_again(caller, revision, hub)
        assert hub.sent["one"] < len(FILES["one"])
        assert files_in(await caller.mounted(revision)) == FILES
    finally:
        await proxy.stop()
        await asyncio.to_thread(lambda: subprocess.run(["umount", "-l", place], check=True))
