"""What the kernel limits by user: one session takes none of it from another one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from ai.backend.node.linux import cgroupfs
from ai.backend.plugin.accelerator import Mount, WorkloadConfig
from tests.component.runtime.conftest import Bench

pytestmark = [pytest.mark.needs("isolation", "cgroups", "root")]
KERNEL_USER = 59500
TAKE_INOTIFY = """
import ctypes
libc, taken = ctypes.CDLL(None, use_errno=True), []
while (fd := libc.inotify_init1(0)) >= 0: taken.append(fd)
print(len(taken) > 0, ctypes.get_errno())
import time; time.sleep(COUNT)
"""
TAKE_PTYS = """
import os
taken = []
try:
    while len(taken) < 4000: taken += os.openpty()
except OSError as e: print(e.errno)
print(len(taken) // 2)
"""


async def _hold(talk: Any, code: str) -> None:
    await talk.channel.send({"t": "run", "id": "hold", "mode": "query", "code": code.replace("COUNT", "600")})
    await talk.until(lambda frame: "True 24" in talk.text("hold"), "all that there is being taken")


@pytest.mark.parametrize("bench", ["sealed", "caged"], indirect=True)
async def test_inotify_instances_of_one_session_are_not_those_of_another(bench: Bench) -> None:
    first, first_talk = await bench.start()
    second, second_talk = await bench.start()
    await _hold(first_talk, TAKE_INOTIFY)
    await second_talk.run(TAKE_INOTIFY.replace("COUNT", "0"))
    assert second_talk.text() == "True 24\n", "EMFILE after some, not at once"
    for key, talk in ((first, first_talk), (second, second_talk)):
        await bench.end(key, talk)


async def test_terminals_of_a_session_are_limited(bench: Bench) -> None:
    key, talk = await bench.start()
    fork = "import os, pty\npid, fd = pty.fork()\nif not pid: os.execlp('tty', 'tty')\nprint(os.read(fd, 64))"
    await talk.run(fork, "r1")
    assert "/dev/pts/" in talk.text("r1")
    await talk.run(TAKE_PTYS, "r2")
    assert talk.text("r2") == f"28\n{bench.runtime.settings.ptys - 1}\n", "one is still open"
    await bench.end(key, talk)


async def test_files_belong_to_the_kernel_user_all_the_same(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    os.chown(folder, KERNEL_USER, KERNEL_USER)
    mount = Mount(source=str(folder), target="/home/work/folder", read_only=False)
    key, talk = await bench.start(config=WorkloadConfig(mounts=(mount,), extra_gids=(44,)))
    await talk.run("open('folder/new', 'w').close(); open('mine', 'w').close()")
    home = bench.state / "homes" / str(key.kernel_id)
    statuses = [await asyncio.to_thread(path.stat) for path in (folder / "new", home / "mine")]
    assert {(status.st_uid, status.st_gid) for status in statuses} == {(KERNEL_USER, KERNEL_USER)}
    pids = await bench.runtime.pids(key)
    texts = [cgroupfs.read(f"/proc/{pid}/status") for pid in pids]
    lines = {line for text in texts for line in text.splitlines() if line.startswith(("Uid:", "Groups:"))}
    assert f"Uid:\t{KERNEL_USER}\t{KERNEL_USER}\t{KERNEL_USER}\t{KERNEL_USER}" in lines
    assert "Groups:\t44 " in lines
    await bench.end(key, talk)


TAKE_PROCESSES = """
import os, resource, time
count = 0
try:
    while count < 200:
        if not os.fork(): time.sleep(600)
        count += 1
except OSError as e: print(e.errno)
soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
try:
    resource.setrlimit(resource.RLIMIT_NPROC, (hard + 1, hard + 1))
except ValueError:
    print("no more")
print(count)
"""


@pytest.mark.parametrize("bench", ["caged"], indirect=True)
async def test_without_control_groups_a_session_has_as_many_processes_as_it_may(bench: Bench) -> None:
    first, first_talk = await bench.start(pids=40)
    second, second_talk = await bench.start(pids=40)
    for talk in (first_talk, second_talk):
        await talk.run(TAKE_PROCESSES)
        assert talk.text() == "11\nno more\n37\n", "with the first process, the runner and the interpreter"
    for key, talk in ((first, first_talk), (second, second_talk)):
        await bench.end(key, talk)
