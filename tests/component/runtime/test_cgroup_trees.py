"""Discovery on trees that look like other machines' control groups, and the real unified hierarchy."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from uuid import uuid4

import pytest

from ai.backend.node.linux import cgroupfs
from ai.backend.node.linux.cgroups import CgroupV1, CgroupV2, GroupFiles, Limits, NoCgroups
from ai.backend.runtime.process.cgroup_probe import CgroupMount, find_driver

V2_FILES = {
    "cgroup.controllers": "cpuset cpu io memory pids",
    "cgroup.subtree_control": "cpuset cpu io memory pids",
    "cgroup.procs": "",
}
USAGE_V2 = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
    "memory.current": "1000000\n",
    "memory.stat": "anon 600000\ninactive_file 300000\n",
    "io.stat": "8:0 rbytes=100 wbytes=200 rios=1\n8:16 rbytes=1 wbytes=2 rios=1\n",
    "pids.current": "7\n",
}
USAGE_V1 = {
    "cpuacct.usage": "2500000000\n",
    "memory.usage_in_bytes": "1000000\n",
    "memory.stat": "total_inactive_file 300000\n",
    "blkio.throttle.io_service_bytes_recursive": "8:0 Read 101\n8:0 Write 202\n8:0 Total 303\nTotal 303\n",
    "pids.current": "7\n",
}


def fill(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (directory / name).write_text(text)


class FakeKernel:
    """A directory in which every new directory gets the files that the kernel would put there."""

    def __init__(self, root: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        fill(root, files)
        mkdir, rmdir = Path.mkdir, Path.rmdir

        def make(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
            if parents and not path.parent.exists():
                path.parent.mkdir(mode, parents, exist_ok)
            existed = path.exists()
            mkdir(path, mode, parents, exist_ok)
            if root in path.parents and not existed:
                fill(path, files)

        def remove(path: Path) -> None:
            if root in path.parents:
                for entry in path.iterdir():
                    entry.unlink()
            rmdir(path)

        monkeypatch.setattr(Path, "mkdir", make)
        monkeypatch.setattr(Path, "rmdir", remove)


def test_an_administrators_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeKernel(tmp_path / "cgroup", V2_FILES, monkeypatch)
    driver = find_driver([CgroupMount(kernel.root, True)], {"": "/x.service"}, "backendai", "one")
    assert isinstance(driver, CgroupV2)
    assert driver.base == kernel.root / "backendai" / "one"
    assert driver.controllers == {"cpuset", "cpu", "io", "memory", "pids"}


@pytest.mark.needs("root")
def test_a_delegated_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the user's own subtree may be written: the driver goes to its top, outside of the agent's own group."""
    kernel = FakeKernel(tmp_path / "cgroup", V2_FILES, monkeypatch)
    service = kernel.root / "user.slice" / "user@1.service"
    (service / "app.slice" / "agent.scope").mkdir(parents=True)
    denied = {kernel.root, kernel.root / "user.slice"}
    mkdir = Path.mkdir

    def guarded(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if path.name == "one" and path.parent.parent in denied:
            raise PermissionError(13, "denied")
        mkdir(path, mode, parents, exist_ok)

    monkeypatch.setattr(Path, "mkdir", guarded)
    own = {"": "/user.slice/user@1.service/app.slice/agent.scope"}
    driver = find_driver([CgroupMount(kernel.root, True)], own, "backendai", "one")
    assert isinstance(driver, CgroupV2)
    assert driver.base == service / "backendai" / "one"


def test_nothing_delegated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {**V2_FILES, "cgroup.controllers": "", "cgroup.subtree_control": ""}
    kernel = FakeKernel(tmp_path / "cgroup", files, monkeypatch)
    driver = find_driver([CgroupMount(kernel.root, True)], {"": "/"}, "backendai", "one")
    assert isinstance(driver, NoCgroups)
    assert not (kernel.root / "backendai").exists(), "a try leaves nothing"


def test_usage_of_version_2(tmp_path: Path) -> None:
    fill(tmp_path, USAGE_V2)
    usage = CgroupV2(base=tmp_path, controllers=frozenset()).usage(GroupFiles([{"path": str(tmp_path)}]))
    assert (usage.cpu_used_ms, usage.memory) == (2500.0, 700000)
    assert (usage.io_read, usage.io_write, usage.pids) == (101, 202, 7)


def test_usage_of_version_1(tmp_path: Path) -> None:
    fill(tmp_path, USAGE_V1)
    usage = CgroupV1(bases={}).usage(GroupFiles([{"path": "/nowhere"}, {"path": str(tmp_path)}]))
    assert (usage.cpu_used_ms, usage.memory) == (2500.0, 700000)
    assert (usage.io_read, usage.io_write, usage.pids) == (101, 202, 7)


def unified_mount() -> Path:
    for candidate in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")):
        if (candidate / "cgroup.procs").exists() and os.access(candidate, os.W_OK):
            return candidate
    pytest.skip("machine: no unified hierarchy is writable")


@pytest.mark.needs("root")
def test_the_real_unified_hierarchy_joins_kills_and_goes() -> None:
    base = unified_mount() / f"backendai-test-{uuid4().hex[:8]}"
    (group,) = CgroupV2(base=base, controllers=frozenset()).groups("w", Limits())
    groups = [dict(group)]
    cgroupfs.build(groups)
    try:
        script = f"echo 0 > {group['path']}/cgroup.procs; trap '' TERM; sleep 1000 & sleep 1000"
        with subprocess.Popen(["/bin/sh", "-c", script]) as leader:
            deadline = time.monotonic() + 5
            while len(cgroupfs.members(groups)) < 3 and time.monotonic() < deadline:
                time.sleep(0.02)
            assert leader.pid in cgroupfs.members(groups)
            cgroupfs.kill(groups)
            assert leader.wait(timeout=5) == -9
    finally:
        assert cgroupfs.remove(groups) == []
        base.rmdir()
