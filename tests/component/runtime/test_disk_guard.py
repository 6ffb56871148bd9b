"""Sessions that fill the disk on which the platform lives, by their homes or by folders."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ai.backend.common.errors import WorkloadError
from ai.backend.plugin.accelerator import Mount, WorkloadConfig
from ai.backend.runtime.disk_guard import OWNER_LABEL
from ai.backend.runtime.process.runtime import ProcessRuntime
from ai.backend.runtime.process.settings import ProcessRuntimeSettings
from tests.component.runtime.audit import eventually
from tests.component.runtime.conftest import Bench

MIB = 1024 * 1024
KERNEL_USER = 59500
pytestmark = [pytest.mark.needs("isolation", "cgroups", "root")]
ALLOCATE = """
import os
f = open('folder/big', 'wb')
for n in range(4096): os.posix_fallocate(f.fileno(), n << 16, 1 << 16)
"""


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Bench]:
    """A runtime on a small disk of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    await asyncio.to_thread(subprocess.run, ["mount", "-t", "tmpfs", "-o", "size=96m", "t", str(disk)], check=True)
    runtime = ProcessRuntime(ProcessRuntimeSettings(watch_interval_s=1.0), disk / "state")
    try:
        await runtime.setup()
        yield Bench(runtime, disk / "state")
    finally:
        for view in await runtime.list_workloads():
            await runtime.remove(view.key)
        await runtime.shutdown()
        await asyncio.to_thread(subprocess.run, ["umount", str(disk)], check=True)


def folder_config(bench: Bench, name: str) -> WorkloadConfig:
    """Mounts a folder on the same disk at ``folder``."""
    folder = bench.state.parent / name
    folder.mkdir(exist_ok=True)
    os.chown(folder, KERNEL_USER, KERNEL_USER)
    return WorkloadConfig(mounts=(Mount(source=str(folder), target="/home/work/folder", read_only=False),))


async def test_who_fills_the_disk_by_its_home_is_ended(small: Bench) -> None:
    """The session that fills the platform's own disk is ended and its home emptied; its neighbours live."""
    neighbour, others = await small.start()
    key, talk = await small.start(config=WorkloadConfig())
    code = "f = open('big', 'wb', 0)\nwhile True: f.write(bytes(1 << 16))"
    await talk.channel.send({"t": "run", "id": "r1", "mode": "query", "code": code})
    assert (await talk.kind("exited"))["reason"] == "home-limit"
    disk = small.state.parent
    assert not await asyncio.to_thread(eventually, lambda: shutil.disk_usage(disk).free < 64 * MIB)
    await others.run("open('mine', 'w').write('x'); print('unharmed')")
    assert others.text() == "unharmed\n"
    await small.end(key, talk)
    await small.end(neighbour, others)


async def test_who_fills_the_disk_by_a_folder_is_ended_and_nobody_else(small: Bench) -> None:
    neighbour, others = await small.start(config=WorkloadConfig())
    await others.run("open('mine', 'wb').write(bytes(24 << 20)); print('stored')", "r1")
    await asyncio.sleep(1.5)
    key, talk = await small.start(config=folder_config(small, "folder"))
    await talk.channel.send({"t": "run", "id": "r1", "mode": "query", "code": ALLOCATE})
    assert (await talk.kind("exited"))["reason"] == "disk-full"
    await asyncio.sleep(3.0)
    await others.run("import os; print(os.path.getsize('mine') >> 20)", "r2")
    assert others.text("r2") == "24\n", "it holds more than anybody else, and did not fill the disk"
    with pytest.raises(WorkloadError, match="disk of this node is full"):
        await small.start()
    (small.state.parent / "folder" / "big").unlink()
    await small.end(key, talk)
    await small.end(neighbour, others)


async def test_of_those_who_share_a_folder_the_writer_is_ended(small: Bench) -> None:
    config = folder_config(small, "shared")
    key, talk = await small.start(config=config, labels={OWNER_LABEL: "AKIATTACKER"})
    neighbour, others = await small.start(config=config, labels={OWNER_LABEL: "AKIVICTIM"})
    await others.run("open('folder/big', 'w').close(); reader = open('folder/big', 'rb')", "r1")
    await talk.channel.send({"t": "run", "id": "r1", "mode": "query", "code": ALLOCATE})
    assert (await talk.kind("exited"))["reason"] == "disk-full"
    await asyncio.sleep(2.5)
    await others.run("print('unharmed')", "r2")
    assert others.text("r2") == "unharmed\n"
    await small.end(key, talk)
    await small.end(neighbour, others)


async def test_two_sessions_of_one_owner_hide_nothing(small: Bench) -> None:
    config = folder_config(small, "mine")
    labels = {OWNER_LABEL: "AKIATTACKER"}
    sessions = [await small.start(config=config, labels=labels) for _ in range(2)]
    await sessions[0][1].run(ALLOCATE + "f.close()", "r1")
    ended = [asyncio.ensure_future(talk.kind("exited")) for _, talk in sessions]
    done, _ = await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    assert [task.result()["reason"] for task in done][:1] == ["disk-full"]
    for task in ended:
        task.cancel()
    await asyncio.gather(*ended, return_exceptions=True)
    for key, talk in sessions:
        await small.end(key, talk)
