"""SIGKILL at each enumerated instruction of creation, stop and removal, in the agent's process and in the shim.

The process that dies is another one than the test's. The audit looks at /proc, the control groups and the directories,
never at the runtime's own books.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.plugin.crash_points import VARIABLE
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec, WorkloadState
from ai.backend.runtime.process.runtime import ProcessRuntime
from ai.backend.runtime.process.settings import ProcessRuntimeSettings
from tests.component.runtime.audit import are_alive, eventually, processes_of, traces_of
from tests.support import forked
from tests.support.runtime_crash_points import PROCESS_AGENT_POINTS as AGENT_POINTS
from tests.support.runtime_crash_points import PROCESS_SHIM_POINTS as SHIM_POINTS

DRIVER = Path(__file__).with_name("driver.py")
TIERS: dict[str, dict[str, Any]] = {
    "sealed": {},
    "caged": {"cgroups": "off"},
    "bare": {"sandbox": "off", "cgroups": "off"},
}
pytestmark = [pytest.mark.slow, pytest.mark.needs("isolation", "cgroups", "root")]


def drive(state: Path, kernel_id: str, settings: dict[str, Any], point: str = "", until: str = "removed") -> list[Any]:
    """Run the driver; returns its steps."""
    environ = {**os.environ, **({VARIABLE: point} if point else {})}
    command = [sys.executable, str(DRIVER), str(state), kernel_id, json.dumps(settings), until]
    done = forked.run(command, env=environ, timeout=50)
    if point in AGENT_POINTS:
        assert done.returncode == -signal.SIGKILL, f"{point} was not reached: {done.stdout} {done.stderr}"
    else:
        assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@asynccontextmanager
async def next_agent(state: Path, settings: dict[str, Any]) -> AsyncIterator[ProcessRuntime]:
    runtime = ProcessRuntime(ProcessRuntimeSettings(**settings), state)
    await runtime.setup()
    try:
        yield runtime
    finally:
        for view in await runtime.list_workloads():
            await runtime.remove(view.key)
        await runtime.shutdown()


async def settle_and_audit(state: Path, kernel_id: str, settings: dict[str, Any]) -> None:
    """The next agent finds the workload whole or nothing of it; after it removed what it found, nothing is left."""
    async with next_agent(state, settings) as runtime:
        views = await runtime.list_workloads()
        assert all(view.state in (WorkloadState.RUNNING, WorkloadState.EXITED) for view in views)
        if not views:
            assert not await asyncio.to_thread(eventually, lambda: traces_of(kernel_id, state))
        for view in views:
            await runtime.remove(view.key)
        assert not await asyncio.to_thread(eventually, lambda: traces_of(kernel_id, state))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("point", AGENT_POINTS)
async def test_the_agent_dies(tmp_path: Path, tier: str, point: str) -> None:
    kernel_id = str(uuid4())
    state = tmp_path / "state"
    await asyncio.to_thread(drive, state, kernel_id, TIERS[tier], point)
    await settle_and_audit(state, kernel_id, TIERS[tier])


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("point", SHIM_POINTS)
async def test_the_shim_dies(tmp_path: Path, tier: str, point: str) -> None:
    kernel_id = str(uuid4())
    state = tmp_path / "state"
    steps = await asyncio.to_thread(drive, state, kernel_id, TIERS[tier], point)
    said = {step["step"]: step for step in steps}
    if SHIM_POINTS.index(point) <= SHIM_POINTS.index("shim.recorded"):
        assert "failed" in said, f"{point} was not reached: {steps}"
    else:
        expected = "stopped" if point == "shim.exit-recorded" else "shim-died"
        assert said["stopped"]["reason"] == expected, f"{point} was not reached: {steps}"
    assert "shutdown" in said
    assert not await asyncio.to_thread(eventually, lambda: processes_of(kernel_id)), "the agent outlived it and cleaned"
    await settle_and_audit(state, kernel_id, TIERS[tier])


@pytest.mark.parametrize("tier", TIERS)
async def test_the_agent_dies_and_the_workload_runs_on(tmp_path: Path, tier: str) -> None:
    kernel_id = str(uuid4())
    state = tmp_path / "state"
    command = [sys.executable, str(DRIVER), str(state), kernel_id, json.dumps(TIERS[tier]), "ready"]
    environ = {**os.environ, VARIABLE: "driver.never"}
    agent = await asyncio.create_subprocess_exec(*command, env=environ, stdout=subprocess.PIPE)
    assert agent.stdout is not None
    pids: list[int] = []
    async for line in agent.stdout:
        step = json.loads(line)
        if step["step"] == "ready":
            pids = step["pids"]
            agent.kill()
    await agent.wait()
    await asyncio.sleep(0.5)
    assert pids
    assert are_alive(pids)
    async with next_agent(state, TIERS[tier]) as runtime:
        key = WorkloadKey(kernel_id=KernelId(UUID(kernel_id)), attempt=1)
        channel = await runtime.open_channel(key, epoch=2)
        await channel.send({"t": "run", "id": "r", "mode": "query", "code": "print('alive')"})
        async for frame in channel.recv():
            if frame["t"] == "finished":
                break
        await channel.close()
    assert not await asyncio.to_thread(eventually, lambda: traces_of(kernel_id, state))


@pytest.mark.parametrize("tier", TIERS)
async def test_a_killed_shim_takes_its_workload_along(tmp_path: Path, tier: str) -> None:
    state = tmp_path / "state"
    async with next_agent(state, TIERS[tier]) as runtime:
        key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
        await runtime.create(WorkloadSpec(key=key, session_id=SessionId(uuid4()), image="python"))
        channel = await runtime.open_channel(key, epoch=1)
        code = "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)"
        await channel.send({"t": "run", "id": "r", "mode": "query", "code": code})
        async for frame in channel.recv():
            if frame["t"] == "finished":
                break
        identity = json.loads((state / "workloads" / str(key) / "shim.json").read_text())
        os.kill(identity["shim"][0], signal.SIGKILL)
        async with asyncio.timeout(30):
            event = await anext(aiter(runtime.events()))
        assert (event.key, event.exit.reason) == (key, "shim-died")
        left = await asyncio.to_thread(eventually, lambda: processes_of(str(key.kernel_id)))
        assert not left
        view = await runtime.inspect(key)
        assert view is not None
        assert view.state is WorkloadState.EXITED
        await channel.close()
        await runtime.remove(key)
        assert not traces_of(str(key.kernel_id), state)


async def test_a_killed_zygote_is_replaced(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with next_agent(state, {}) as runtime:
        for _ in range(2):
            zygote = runtime.zygote_pid
            assert zygote is not None
            os.kill(zygote, signal.SIGKILL)
            key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
            view = await runtime.create(WorkloadSpec(key=key, session_id=SessionId(uuid4()), image="python"))
            assert view.state is WorkloadState.RUNNING
            assert runtime.zygote_pid != zygote


@pytest.mark.parametrize("tier", TIERS)
async def test_a_deleted_data_directory_takes_its_workloads_along(tmp_path: Path, tier: str) -> None:
    """Somebody removes everything while no agent runs: the shims notice."""
    state = tmp_path / "state"
    runtime = ProcessRuntime(ProcessRuntimeSettings(watch_interval_s=1.0, **TIERS[tier]), state)
    await runtime.setup()
    key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
    await runtime.create(WorkloadSpec(key=key, session_id=SessionId(uuid4()), image="python"))
    await runtime.shutdown()
    assert processes_of(str(key.kernel_id))
    while state.exists():  # somebody in there may still write
        shutil.rmtree(state, ignore_errors=True)
    left = await asyncio.to_thread(eventually, lambda: traces_of(str(key.kernel_id), state))
    assert not left
