from __future__ import annotations

from pathlib import Path

from ai.backend.node.linux.cgroups import CgroupV1, CgroupV2, Limits, NoCgroups
from ai.backend.node.linux.disk_space import parse_mountinfo
from ai.backend.runtime.process.cgroup_probe import CgroupMount, find_hierarchies, parse_own_groups

ROOT = Path("/sys/fs/cgroup")
HYBRID = """\
30 24 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory
34 30 0:30 / /sys/fs/cgroup/systemd rw,nosuid - cgroup cgroup rw,name=systemd
35 24 0:31 / /elsewhere/memory rw,nosuid - cgroup cgroup rw,memory
broken line
"""
LIMITS = Limits(cpu=1.5, memory_bytes=1 << 28, pids=100, cpuset=(0, 2), devices=(("c", "10:200", "rw"),))


def test_mounts_below_the_root_are_found() -> None:
    assert find_hierarchies(parse_mountinfo(HYBRID), ROOT) == [
        CgroupMount(ROOT / "unified", True),
        CgroupMount(ROOT / "cpu,cpuacct", False, ("cpu", "cpuacct")),
        CgroupMount(ROOT / "memory", False, ("memory",)),
        CgroupMount(ROOT / "systemd", False),
    ]


def test_our_own_groups_are_read() -> None:
    text = "9:cpu,cpuacct:/a/b\n3:memory:/m\n0::/user.slice/user-1000.slice\n"
    own = {"cpu": "/a/b", "cpuacct": "/a/b", "memory": "/m", "": "/user.slice/user-1000.slice"}
    assert parse_own_groups(text) == own


def test_version_1_writes_each_limit_where_its_controller_is() -> None:
    bases = {"cpu": Path("/c/base"), "cpuacct": Path("/c/base"), "memory": Path("/m"), "devices": Path("/d")}
    groups = {group["path"]: group for group in CgroupV1(bases=bases).groups("w", LIMITS)}
    assert set(groups) == {"/c/base/w", "/m/w", "/d/w"}, "a shared mount is one group"
    assert {group["join"] for group in groups.values()} == {"tasks"}
    assert ["cpu.cfs_quota_us", "150000", True] in groups["/c/base/w"]["writes"]
    assert groups["/m/w"]["writes"][0] == ["memory.limit_in_bytes", str(1 << 28), True]
    assert groups["/d/w"]["writes"][0] == ["devices.deny", "a", True]
    assert ["devices.allow", "c 10:200 rw", True] in groups["/d/w"]["writes"]


def test_version_2_writes_only_what_is_delegated() -> None:
    driver = CgroupV2(base=Path("/b"), controllers=frozenset({"cpu", "memory", "pids", "cpuset"}))
    (group,) = driver.groups("w", LIMITS)
    assert group["path"] == "/b/w"
    assert group["join"] == "cgroup.procs"
    assert {name: value for name, value, required in group["writes"] if required} == {
        "cpu.max": "150000 100000",
        "memory.max": str(1 << 28),
        "pids.max": "100",
        "cpuset.cpus": "0,2",
    }
    (bare,) = CgroupV2(base=Path("/b"), controllers=frozenset({"pids"})).groups("w", LIMITS)
    assert [name for name, _, _ in bare["writes"]] == ["pids.max"]


def test_tiny_shares_stay_above_what_the_kernel_takes() -> None:
    (group,) = CgroupV2(base=Path("/b"), controllers=frozenset({"cpu"})).groups("w", Limits(cpu=0.001))
    assert group["writes"] == [["cpu.max", "1000 100000", True]]


def test_no_limits_write_nothing() -> None:
    (group,) = CgroupV2(base=Path("/b"), controllers=frozenset({"cpu", "memory", "pids"})).groups("w", Limits())
    assert group["writes"] == []
    assert NoCgroups().groups("w", LIMITS) == []
