"""SIGKILL in the life of a workload in gVisor: of the agent, of the shim, and of each program of gVisor."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tools.kube.families import families

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.node.linux import cgroupfs
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from tests.component.runtime import test_kills as kills
from tests.component.runtime.audit import eventually, traces_of
from tests.support.runtime_crash_points import PROCESS_AGENT_POINTS, PROCESS_SHIM_POINTS

pytestmark = [pytest.mark.slow, pytest.mark.needs("gvisor", "cgroups", "root", "isolation")]
SETTINGS: dict[str, Any] = {
    "runsc": str(families()["gvisor"].place() / "runsc"),
    "default_runtime_class": "gvisor",
}
TIER = "gvisor"


@pytest.fixture(autouse=True)
def tier(monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the tests of kills take gVisor for a tier."""
    monkeypatch.setitem(kills.TIERS, TIER, SETTINGS)
    return TIER


@pytest.mark.parametrize("point", PROCESS_AGENT_POINTS)
async def test_the_agent_dies(tmp_path: Path, tier: str, point: str) -> None:
    await kills.test_the_agent_dies(tmp_path, tier, point)


@pytest.mark.parametrize("point", PROCESS_SHIM_POINTS)
async def test_the_shim_dies(tmp_path: Path, tier: str, point: str) -> None:
    await kills.test_the_shim_dies(tmp_path, tier, point)


async def test_the_agent_dies_and_the_workload_runs_on(tmp_path: Path, tier: str) -> None:
    await kills.test_the_agent_dies_and_the_workload_runs_on(tmp_path, tier)


async def test_a_killed_shim_takes_its_workload_along(tmp_path: Path, tier: str) -> None:
    await kills.test_a_killed_shim_takes_its_workload_along(tmp_path, tier)


async def test_a_deleted_data_directory_takes_its_workloads_along(tmp_path: Path, tier: str) -> None:
    await kills.test_a_deleted_data_directory_takes_its_workloads_along(tmp_path, tier)


@pytest.mark.parametrize("program", ["runsc", "runsc-sandbox", "runsc-gofer"])
async def test_a_program_of_gvisor_is_killed(tmp_path: Path, program: str) -> None:
    """Whichever dies, the workload ends, its end is told, and nothing of it is left."""
    state = tmp_path / "state"
    async with kills.next_agent(state, SETTINGS) as runtime:
        key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
        await runtime.create(WorkloadSpec(key=key, session_id=SessionId(uuid4()), image="python"))
        channel = await runtime.open_channel(key, epoch=1)
        async for frame in channel.recv():
            if frame["t"] == "ready":
                break
        pids = await runtime.pids(key)
        names = {pid: os.path.basename(cgroupfs.read(f"/proc/{pid}/cmdline").partition("\0")[0]) for pid in pids}
        victim = next(pid for pid, name in names.items() if name == program)
        os.kill(victim, signal.SIGKILL)
        async with asyncio.timeout(30):
            event = await anext(aiter(runtime.events()))
        assert (event.key, event.exit.code, event.exit.signal) == (key, None, signal.SIGKILL)
        await channel.close()
        await runtime.remove(key)
        assert not await asyncio.to_thread(eventually, lambda: traces_of(str(key.kernel_id), state))
