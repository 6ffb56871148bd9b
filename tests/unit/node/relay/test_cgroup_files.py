"""The first process of a pod measures its own control groups, of version 1 and of version 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.node.relay.cgroup_files import measure, oom_kills

V1 = {
    "cpuacct/cpuacct.usage": "1500000000\n",
    "memory/memory.usage_in_bytes": "3000\n",
    "memory/memory.stat": "cache 7\ntotal_inactive_file 1000\n",
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    "blkio/blkio.throttle.io_service_bytes_recursive": "254:0 Read 10\n254:0 Write 20\n8:0 Read 1\nTotal 31\n",
}
V2 = {
    "cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n",
    "cpu.stat": "usage_usec 1500000\nuser_usec 1\nsystem_usec 2\n",
    "memory.current": "3000\n",
    "memory.stat": "anon 5\ninactive_file 1000\n",
    "memory.events": "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 1\n",
    "io.stat": "254:0 rbytes=10 wbytes=20 rios=1 wios=1 dbytes=0 dios=0\n8:0 rbytes=1 wbytes=0 rios=1 wios=0\n",
}
NETWORK = "Inter-|  Receive\n face |bytes\n    lo: 9 0 0 0 0 0 0 0 9 0\n  eth0: 40 0 0 0 0 0 0 0 50 0\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


@pytest.mark.parametrize("files", [V1, V2], ids=["v1", "v2"])
def test_both_versions_give_the_same_numbers(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path / "groups", files)
    write(tmp_path / "proc", {"net/dev": NETWORK, "12/stat": "", "3/stat": "", "self/stat": ""})
    assert measure(str(tmp_path / "groups"), str(tmp_path / "proc")) == {
        "cpu_ms": 1500.0,
        "mem": 2000,
        "io_read": 11,
        "io_write": 20,
        "net_rx": 40,
        "net_tx": 50,
        "pids": [3, 12],
    }
    assert oom_kills(str(tmp_path / "groups")) == 2


def test_what_is_not_counted_is_none(tmp_path: Path) -> None:
    write(tmp_path, {"groups/cgroup.controllers": "", "proc/1/stat": ""})
    measured = measure(str(tmp_path / "groups"), str(tmp_path / "proc"))
    assert measured.pop("pids") == [1]
    assert set(measured.values()) == {None}
    assert oom_kills(str(tmp_path / "groups")) == 0
