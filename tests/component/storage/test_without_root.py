"""The proxy under an ordinary user: it gives nothing away, and what is not its own it leaves alone."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.cluster import wait_until
from tests.support.storage_proxy import Caller, ProxyProcess

USER = 41234
AS_USER = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")


@pytest.fixture
def process() -> Iterator[ProxyProcess]:
    probe = [*AS_USER, sys.executable, "-c", "import ai.backend.storage.main"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False, cwd="/")
    if done.returncode != 0:
        pytest.skip(f"machine: Python is out of reach of other users: {done.stderr.strip()[-100:]}")
    root = Path(tempfile.mkdtemp())  # pytest's own are root's alone
    process = ProxyProcess(root, user=USER + 1, launcher=AS_USER)
    for path in (root, process.file):
        os.chown(path, USER, USER)
    yield process
    process.stop(kill=True)
    shutil.rmtree(root, ignore_errors=True)


@pytest.mark.needs("root")
async def test_folders_live_and_die_under_an_ordinary_user(process: ProxyProcess, http: aiohttp.ClientSession) -> None:
    await asyncio.to_thread(process.start)
    assert f"belong to uid {USER}, not {USER + 1}" in (process.root / "proxy.out").read_text()
    caller = Caller(http, process.manager_url)
    vfid = await caller.folder()
    await caller.put(vfid, "a/b", b"content" * 100_000)
    inside = await caller.inside(vfid)
    assert {p.stat().st_uid for p in (inside, *inside.rglob("*"))} == {USER}
    answer = await caller.send("GET", await caller.download_url(vfid, "a/b"))
    assert answer.body == b"content" * 100_000
    target = f"user:{vfid[5:41]}/{'0' * 32}"
    body = {"src_volume": "volume1", "src_vfid": vfid, "dst_volume": "volume1", "dst_vfid": target}
    await caller.ask("POST", "/folder/clone", **body)
    copy = process.root / "volume1" / vfid[5:41].replace("-", "") / "00" / "00" / ("0" * 28)
    await asyncio.to_thread(wait_until, copy.is_dir, what="the clone")
    assert (copy / "a" / "b").read_bytes() == b"content" * 100_000
    for folder in (vfid, target):
        assert (await caller.ask("POST", "/folder/delete", vfid=folder)).status == 204
    await asyncio.to_thread(
        wait_until, lambda: not list((process.root / "volume1").glob("*/.trash/*")), what="the trash being empty"
    )


@pytest.mark.needs("root")
async def test_what_others_closed_is_a_conflict_and_stays(process: ProxyProcess, http: aiohttp.ClientSession) -> None:
    await asyncio.to_thread(process.start)
    caller = Caller(http, process.manager_url)
    vfid = await caller.folder()
    inside = await caller.inside(vfid)
    (inside / "secret").write_text("root's")
    (inside / "secret").chmod(0o600)
    (inside / "closed").mkdir(mode=0o700)
    (inside / "closed" / "file").write_text("root's")

    async def status(method: str, path: str, **body: Any) -> int:
        answer = await caller.ask(method, path, vfid=vfid, **body)
        assert "Traceback" not in answer.body.decode()
        return answer.status

    url = await caller.download_url(vfid, "secret")
    assert (await caller.send("GET", url)).status == 409
    assert await status("POST", "/folder/file/list", relpath="closed") == 409
    assert await status("GET", "/folder/usage") == 409
    assert await status("POST", "/folder/file/upload", relpath="closed/x", size=1) == 409
    assert await status("POST", "/folder/file/delete", relpaths=["closed"], recursive=True) == 409
    assert (inside / "closed" / "file").read_text() == "root's"
    assert await status("POST", "/folder/file/delete", relpaths=["secret"]) == 204  # the directory is the proxy's


@pytest.mark.needs("root")
def test_limits_of_the_file_system_need_root(process: ProxyProcess) -> None:
    process.file.write_text(process.file.read_text().replace('"vfs"', '"xfs"'))
    with pytest.raises(AssertionError, match=r"xfs mounted with 'prjquota'|needs root"):
        process.start()
