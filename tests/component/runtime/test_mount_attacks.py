"""Users who leave links in their homes and folders where the platform is to mount something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ai.backend.common.errors import CreationDenied, WorkloadError
from ai.backend.node.workload.file_trees import RUNNER
from ai.backend.plugin.accelerator import Mount, WorkloadConfig
from ai.backend.plugin.runtime import WorkloadKey
from tests.component.runtime.conftest import Bench

pytestmark = [pytest.mark.needs("isolation", "cgroups", "root")]
KERNEL_USER = 59500


async def _restart_with(bench: Bench, code: str, mounts: tuple[Mount, ...]) -> tuple[WorkloadKey, str]:
    """Runs code in a session, starts the next attempt with its home and these mounts, and returns its first error."""
    key, talk = await bench.start()
    await talk.run(code)
    await talk.close()
    await bench.runtime.remove(key, keep_home=True)
    again = WorkloadKey(kernel_id=key.kernel_id, attempt=2)
    try:
        _, talk = await bench.start(key=again, config=WorkloadConfig(mounts=mounts))
    except (WorkloadError, CreationDenied, AssertionError) as error:
        return again, str(error)
    await talk.close()
    return again, ""


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    os.chown(path, KERNEL_USER, KERNEL_USER)
    return path


async def test_a_link_in_the_home_leads_no_mount_to_the_host(bench: Bench, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as outside:
        os.chmod(outside, 0o777)
        mount = Mount(source=str(_folder(tmp_path / "data")), target="/home/work/zz/x", read_only=False)
        _, error = await _restart_with(bench, f"import os; os.symlink('/oldroot{outside}', 'zz')", (mount,))
        assert os.listdir(outside) == []
        assert "zz" in error


async def test_a_link_in_the_home_leads_no_mount_to_the_runner(bench: Bench, tmp_path: Path) -> None:
    mine = _folder(tmp_path / "mine")
    (mine / "runner_main.py").write_text("import os; os.write(3, b'taken over')")
    mount = Mount(source=str(mine), target="/home/work/zz/kernel", read_only=False)
    link = f"import os; os.symlink('/newroot{os.path.dirname(RUNNER)}', 'zz')"
    _, error = await _restart_with(bench, link, (mount,))
    assert "zz" in error


async def test_a_link_in_a_shared_folder_leads_no_mount_to_the_runner(bench: Bench, tmp_path: Path) -> None:
    """Another session may write in the outer folder at any time, so that no check before the mount would hold."""
    outer, mine = _folder(tmp_path / "outer"), _folder(tmp_path / "mine")
    (outer / "zz").symlink_to(f"/newroot{os.path.dirname(RUNNER)}")
    mounts = (
        Mount(source=str(mine), target="/home/work/outer/zz/kernel", read_only=False),
        Mount(source=str(outer), target="/home/work/outer", read_only=False),
    )
    _, error = await _restart_with(bench, "", mounts)
    assert "zz" in error


@pytest.mark.parametrize("target", ["/opt", "/opt/backend.ai", "/home", RUNNER])
@pytest.mark.parametrize("bench", ["sealed"], indirect=True)
async def test_nothing_covers_the_runner_or_the_home(bench: Bench, tmp_path: Path, target: str) -> None:
    mount = Mount(source=str(_folder(tmp_path / "data")), target=target, read_only=False)
    with pytest.raises(CreationDenied, match="nothing can be mounted"):
        await bench.start(config=WorkloadConfig(mounts=(mount,)))


async def test_mounts_lie_in_the_home_and_in_each_other(bench: Bench, tmp_path: Path) -> None:
    outer, inner, shared = (_folder(tmp_path / name) for name in ("outer", "inner", "shared"))
    (shared / "file").write_text("theirs")
    (tmp_path / "one-file").write_text("of a file")
    mounts = (
        Mount(source=str(inner), target="/home/work/a/outer/deep/inner", read_only=False),
        Mount(source=str(outer), target="/home/work/a/outer", read_only=False),
        Mount(source=str(shared), target="/home/work/shared", read_only=True),
        Mount(source=str(tmp_path / "one-file"), target="/home/work/names/file", read_only=True),
    )
    key, talk = await bench.start(config=WorkloadConfig(mounts=mounts))
    code = (
        "open('a/outer/deep/inner/x', 'w').write('in'); open('a/outer/y', 'w').write('out')\n"
        "open('names/mine', 'w').close(); print(open('names/file').read(), open('shared/file').read())\n"
        "for path in ('shared/file', 'shared/new', 'names/file'):\n"
        "    try: open(path, 'w')\n"
        "    except OSError as e: print(e.errno in (13, 30))\n"  # by the kernel, one or the other is checked first
    )
    await talk.run(code)
    assert talk.text() == "of a file theirs\nTrue\nTrue\nTrue\n"
    assert sorted(os.listdir(inner)) == ["x"]
    assert sorted(os.listdir(outer)) == ["deep", "y"]
    assert (outer / "deep").stat().st_uid == (inner / "x").stat().st_uid == KERNEL_USER
    home = bench.state / "homes" / str(key.kernel_id)
    assert (home / "a").stat().st_uid == KERNEL_USER
    await bench.end(key, talk)


STAGE = """
import json, os, sys
from ai.backend.runtime.process.supervisor import launch
plan = {"stage": json.loads(sys.argv[1]), "owner": [59500, 59500], "pty_limit": 8, "bundle": None}
launch._stage_sources(plan)
print(open("/proc/self/mountinfo").read())
"""


def test_what_is_read_only_is_so_before_bubblewrap_runs(tmp_path: Path) -> None:
    """bubblewrap binds first and makes read-only what then lies at the target, which may be something else."""
    sources = [_folder(tmp_path / name) for name in ("home", "shared")]
    staged = [
        {"source": str(sources[0]), "name": "0", "bind": "--bind", "place": None},
        {"source": str(sources[1]), "name": "1", "bind": "--ro-bind", "place": ["0", "zz/x"]},
    ]
    completed = subprocess.run(
        [sys.executable, "-c", STAGE, json.dumps(staged)], capture_output=True, text=True, check=True
    )
    lines = [line.split() for line in completed.stdout.splitlines()]
    options = {words[4]: words[5].split(",") for words in lines if words and words[4].startswith("/tmp/")}
    assert options["/tmp/0"][:3] == ["rw", "nosuid", "nodev"]
    assert options["/tmp/1"][:3] == options["/tmp/0/zz/x"][:3] == ["ro", "nosuid", "nodev"]
