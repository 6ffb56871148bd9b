"""Each field of a plugin's config reaches a workload, or its kernel gets a message: one matrix for each runtime.

A field of :class:`WorkloadConfig` without a look here fails the tests of all runtimes.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ai.backend.agent.composition import Agent
from ai.backend.agent.config.settings import INTRINSIC_PLUGINS
from ai.backend.agent.runtimes import load_runtime
from ai.backend.common.ids import KernelId
from ai.backend.common.states import KernelStatus, RunStatus
from ai.backend.plugin.accelerator import DeviceMapping, Mount, WorkloadConfig
from ai.backend.plugin.discovery import PluginSource, find_plugins
from ai.backend.plugin.runtime import WorkloadKey
from tests.component.agent.test_hooks import acting
from tests.component.agent.test_process_runtime import MIB, RealBench, real
from tests.component.agent.test_services import docker
from tests.support.docker_engine import PYTHON_IMAGE, DockerEngine

__all__ = ["docker", "real"]
S = KernelStatus
_LOOK = """
import ctypes, json, os, stat
libc = ctypes.CDLL(None, use_errno=True)
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
device = os.stat("/dev/acme0").st_rdev if os.path.exists("/dev/acme0") else 0
print(json.dumps({
    "mounts": open("/opt/acme/driver.txt").read() if os.path.exists("/opt/acme/driver.txt") else "",
    "devices": [os.major(device), os.minor(device)],
    "env_vars": os.environ.get("ACME_VISIBLE_DEVICES"),
    "resource_data": [line for line in open("/home/config/resource.txt").read().splitlines() if "ACME" in line],
    "networks": len(open("/proc/net/dev").read().splitlines()) - 3,
    "extra_syscalls": libc.syscall(312, os.getpid(), os.getpid(), 1, 0, 0),
    "ipc": open("/dev/shm/from-the-host").read() if os.path.exists("/dev/shm/from-the-host") else "",
    "cpuset": sorted(os.sched_getaffinity(0)),
    "memory_nodes": status["Mems_allowed_list"].strip(),
}))
"""
"""Prints each field as a program sees it. 312 is ``kcmp``, which no session may call unless a plugin says so."""


ALL = frozenset(field.name for field in fields(WorkloadConfig))


@pytest.fixture
def said(tmp_path: Path) -> WorkloadConfig:
    """A config in which a plugin says everything that it may."""
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "driver.txt").write_text("driver 7")
    shared = tmp_path / "shm"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "from-the-host").write_text("shared")
    for place in (tmp_path, *tmp_path.parents[:2]):
        place.chmod(place.stat().st_mode | 0o011)  # the session's user walks through
    return WorkloadConfig(
        mounts=(Mount(source=str(tmp_path / "acme"), target="/opt/acme"),),
        devices=(DeviceMapping(source="/dev/null", target="/dev/acme0"),),
        env_vars={"ACME_VISIBLE_DEVICES": "acme-0"},
        resource_data={"ACME_GLOBAL_DEVICE_IDS": "0:acme-0"},
        networks=("extnet",),
        extra_gids=(4711,),
        extra_syscalls=("kcmp",),
        ipc=str(shared),
    )


def nodes_of(text: str) -> set[int]:
    ranges = [part.partition("-") for part in text.split(",")]
    return {number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)}


def limits_of(pid: int) -> dict[str, Any]:
    """The groups of a workload's first process and the limits of its control groups, read from the node."""
    groups = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Groups"))
    limits: dict[str, Any] = {"extra_gids": [int(gid) for gid in groups.split()[1:] if gid == "4711"]}
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        top = Path("/sys/fs/cgroup") / controllers.removeprefix("name=")
        group = top / path[1:] if controllers else Path("/sys/fs/cgroup") / path[1:]
        for name in ("memory.limit_in_bytes", "memory.max"):
            if (group / name).exists() and (text := (group / name).read_text().strip()).isdigit():
                limits["memory_limit_bytes"] = int(text)
        if (group / "cpu.cfs_quota_us").exists():
            period = int((group / "cpu.cfs_period_us").read_text())
            limits["cpu_limit"] = int((group / "cpu.cfs_quota_us").read_text()) / period
        if (group / "cpu.max").exists() and not (text := (group / "cpu.max").read_text()).startswith("max"):
            quota, period_text = text.split()
            limits["cpu_limit"] = int(quota) / int(period_text)
    return limits


async def look(bench: RealBench, config: WorkloadConfig, **changes: Any) -> tuple[dict[str, Any], str]:
    """Returns each field as a session with the config sees it, and the message of its kernel."""

    async def say(_: Any) -> WorkloadConfig:
        return config

    plugin, _ = acting("acme", pre_create=say)
    settings = bench.settings()
    sources = [*find_plugins((), (), INTRINSIC_PLUGINS), PluginSource("acme", lambda: plugin)]
    agent = Agent(settings, load_runtime(settings), bench.manager, plugins=sources)
    bench.agents.append(agent)
    await agent.start()
    spec = await bench.run(agent, slots={"cpu": "1", "mem": str(256 * MIB), "acme": "1"}, **changes)
    result = await bench.say(agent, spec, _LOOK)
    assert result.status is RunStatus.FINISHED, result
    key = WorkloadKey(kernel_id=KernelId(UUID(spec.kernel_id)), attempt=spec.attempt)
    sight = {**json.loads(result.console[0][1]), **limits_of((await agent._runtime.pids(key))[0])}
    running = next(o for o in bench.manager.observations if (o.kernel_id, o.status) == (spec.kernel_id, S.RUNNING))
    held = {slot: sorted(map(int, devices)) for slot, devices in (running.devices or {}).items() if slot == "cpu"}
    expected = {
        "mounts": "driver 7",
        "devices": [os.major(os.stat("/dev/null").st_rdev), os.minor(os.stat("/dev/null").st_rdev)],
        "env_vars": "acme-0",
        "resource_data": ["ACME_SHARES=0:1", "ACME_GLOBAL_DEVICE_IDS=0:acme-0"],
        "networks": 1,
        "extra_gids": [4711],
        "extra_syscalls": 0,
        "ipc": "shared",
        "cpuset": held["cpu"],
        "memory_nodes": sight["memory_nodes"],
        "cpu_limit": 1.0,
        "memory_limit_bytes": 256 * MIB,
    }
    assert set(expected) == ALL, "a field of WorkloadConfig has no look"
    assert nodes_of(sight["memory_nodes"])
    sight["resource_data"] = [line for line in sight["resource_data"] if not line.startswith("ACME_SHARES")]
    expected["resource_data"] = expected["resource_data"][1:]
    await bench.destroy(agent, spec)
    reached = {name: sight.get(name) == expected[name] for name in sorted(ALL)}
    missed = {name: (sight.get(name), expected[name]) for name, is_there in reached.items() if not is_there}
    return missed, running.message or ""


@pytest.mark.needs("isolation", "cgroups", "root")
async def test_what_a_plugin_says_reaches_a_process(real: RealBench, said: WorkloadConfig) -> None:
    real.options = {"runtime": {"network": "none"}}
    missed, message = await look(real, said)
    assert set(missed) == {"networks"}, missed
    assert "does not apply networks of the plugins" in message


@pytest.mark.needs("docker")
async def test_what_a_plugin_says_reaches_a_container(
    docker: RealBench, docker_engine: DockerEngine, said: WorkloadConfig
) -> None:
    status, answer = docker_engine.call("POST", "/networks/create", b'{"Name": "extnet", "Internal": true}')
    assert status == 201, answer
    try:
        missed, _ = await look(docker, said, image=PYTHON_IMAGE)
        assert missed == {}
    finally:
        docker_engine.call("DELETE", f"/networks/{answer['Id']}")
