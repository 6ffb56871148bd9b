"""The cuda plugin under MPS: a daemon for each GPU, limits of the largest share, an end behind the last holder.

The control program is a stand-in that takes the documented commands; NVML is a written fixture. What NVIDIA's own
daemon does with the limits is not proved here.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.accelerator.cuda.plugin import CudaPlugin
from ai.backend.accelerator.cuda.replay import Recording, ReplayHost
from ai.backend.accelerator.cuda.settings import CudaSettings
from ai.backend.agent.composition import Agent
from ai.backend.common.errors import PluginError
from ai.backend.common.states import KernelStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import ClaimSpec, CreateKernels, DestroyKernel, KernelSpec
from ai.backend.plugin.discovery import PluginSource
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from tests.component.agent.conftest import Bench
from tests.support.cuda import FIXTURES, T4, Machine

S = KernelStatus
FAKE = str(Path(__file__).parents[2] / "support" / "fake_mps.py")
GIB = 2**30
pytestmark = pytest.mark.needs("root")


def is_mounted(path: Path) -> bool:
    return os.path.ismount(path)


@pytest.fixture
def mps_dir() -> Iterator[Path]:
    """The folder of daemons, which are ended behind a test that fails too. Paths of sockets are short."""
    folder = Path(tempfile.mkdtemp(prefix="mps-"))
    yield folder
    for place in folder.glob("*/pipe/nvidia-cuda-mps-control.pid"):
        os.kill(int(place.read_text()), signal.SIGKILL)
    for place in folder.glob("*/shm"):
        subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)
    shutil.rmtree(folder)


class Node:
    """An agent with the GPUs of a fixture, in shares under MPS."""

    def __init__(self, bench: Bench, mps_dir: Path, **settings: Any) -> None:
        self.bench, self.folder, self.machine = bench, mps_dir, Machine(T4)
        bench.options = {"kernel-lifecycles": {"plugin-timeout": 60.0}, **bench.options}
        values = {"allocation_mode": "fractional", "sharing": "mps", "mps_dir": mps_dir, "mps_control": FAKE}
        self.settings = CudaSettings(**{**values, **settings})
        self.uuids = sorted(
            answer
            for key, answer in Recording.load(FIXTURES / T4).answers.items()
            if key.startswith("nvmlDeviceGetHandleByIndex")
        )

    def agent(self) -> Agent:
        node = self

        class Plugin(CudaPlugin):
            def __init__(self, settings: Any = None) -> None:
                super().__init__(node.settings, nvml=node.machine, host=ReplayHost(node.machine.recording))

        Plugin.capabilities = type(CudaPlugin.capabilities)(process_metrics=True)  # in the agent's own process
        sources = [PluginSource("cuda", lambda: Plugin)]
        return Agent(self.bench.settings(), self.bench.runtime, self.bench.manager, plugins=sources)

    def log(self, uuid: str) -> list[str]:
        return (self.folder / uuid / "log" / "control.log").read_text().splitlines()

    def workload(self, spec: KernelSpec) -> WorkloadSpec:
        return next(w for w in self.bench.runtime.specs.values() if str(w.key.kernel_id) == spec.kernel_id)

    async def run(self, agent: Agent, uuid: str, amount: str, **changes: Any) -> KernelSpec:
        devices = {"cuda.shares": {uuid: amount}}
        return await self.bench.run(agent, slots={"cuda.shares": amount}, devices=devices, generation=1, **changes)

    async def end(self, agent: Agent, spec: KernelSpec) -> None:
        await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
        await self.bench.until(spec, S.TERMINATED)


async def test_holders_of_a_gpu_share_its_daemon_which_ends_with_the_last(bench: Bench, mps_dir: Path) -> None:
    node = Node(bench, mps_dir, unit_mem=2 * GIB)
    first, second = node.uuids
    agent = node.agent()
    await agent.start()
    try:
        small = await node.run(agent, first, "1")
        config = node.workload(small).config
        assert config.env_vars["CUDA_MPS_PIPE_DIRECTORY"] == "/opt/cuda-mps"
        assert (str(mps_dir / first / "pipe"), "/opt/cuda-mps", True) in [
            (mount.source, mount.target, mount.read_only) for mount in config.mounts
        ]
        assert config.ipc == str(mps_dir / first / "shm")
        own_limit = config.env_vars["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].removeprefix("0=")
        assert node.log(first) == [
            f"daemon of {first} as 0",
            f"set_default_device_pinned_mem_limit 0 {own_limit}",
            f"set_default_active_thread_percentage {config.env_vars['CUDA_MPS_ACTIVE_THREAD_PERCENTAGE']}",
        ]
        (mps_dir / first / "shm" / "client").touch()  # its program is a client now: the server runs
        large = await node.run(agent, first, "3", plugin_options={"cuda": {"active_thread_percentage": 10}})
        limits = node.workload(large).config.env_vars
        assert limits["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "10", "the session asks for less than its share"
        large_limit = limits["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].removeprefix("0=")
        assert int(large_limit[:-1]) > int(own_limit[:-1])
        assert node.log(first)[3:] == [
            f"set_default_device_pinned_mem_limit 0 {large_limit}",
            "set_default_active_thread_percentage 20",
            f"set_device_pinned_mem_limit 4711 0 {large_limit}",
            "set_active_thread_percentage 4711 20",
        ], "one daemon for both, with the limits of the larger, for the server that runs too"
        other = await node.run(agent, second, "1")
        assert node.workload(other).config.ipc == str(mps_dir / second / "shm")
        await node.end(agent, large)
        assert node.log(first)[-4] == f"set_default_device_pinned_mem_limit 0 {own_limit}"
        await node.end(agent, small)
        assert node.log(first)[-1] == "quit -t 5"
        assert not (mps_dir / first / "pipe").exists()
        assert not is_mounted(mps_dir / first / "shm")
        assert (mps_dir / second / "pipe" / "control").exists()
        await node.end(agent, other)
    finally:
        await agent.stop()


async def test_sessions_of_a_claim_use_a_whole_gpu_at_once_by_one_daemon(bench: Bench, mps_dir: Path) -> None:
    """Each may use all of it, and the daemon ends behind the last; nobody else gets a share meanwhile."""
    node = Node(bench, mps_dir, unit_mem=2 * GIB)
    uuid, other = node.uuids
    agent = node.agent()
    await agent.start()
    try:
        await bench.manager.next_heartbeat()
        whole = next(
            slot["amount"]
            for device in bench.manager.heartbeats[-1].devices
            for slot in device["slots"]
            if device["device_id"] == uuid
        )
        claim = ClaimSpec(id=str(uuid4()), slots={"cuda.shares": str(whole)})
        first = await node.run(agent, uuid, str(whole), claim=claim)
        bound = replace(claim, devices={"cuda.shares": {uuid: str(whole)}}, is_bound=True)
        second = await node.run(agent, uuid, str(whole), claim=bound)
        limits = [node.workload(spec).config.env_vars for spec in (first, second)]
        assert limits[0] == limits[1]
        assert limits[0]["NVIDIA_VISIBLE_DEVICES"] == uuid
        assert limits[0]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "100"
        assert [line for line in node.log(uuid) if line.startswith("daemon")] == [f"daemon of {uuid} as 0"]
        stranger = bench.spec(slots={"cuda.shares": "1"}, devices={"cuda.shares": {uuid: "1"}}, generation=-1)
        await agent.commands.create_kernels(CreateKernels(kernels=[stranger]))
        seen = await bench.until(stranger, S.RUNNING)
        assert (seen.devices or {})["cuda.shares"] == {other: "1"}
        await node.end(agent, first)
        assert (mps_dir / uuid / "pipe" / "control").exists(), "the second session goes on"
        await node.end(agent, second)
        assert node.log(uuid)[-1] == "quit -t 5"
        await node.end(agent, stranger)
    finally:
        await agent.stop()


async def test_the_daemon_outlives_the_agent_and_one_that_dies_is_started_again(bench: Bench, mps_dir: Path) -> None:
    node = Node(bench, mps_dir)
    (uuid, _) = node.uuids
    agent = node.agent()
    await agent.start()
    spec = await node.run(agent, uuid, "1")
    await agent.stop()
    agent = node.agent()
    await agent.start()
    try:
        second = await node.run(agent, uuid, "1")
        assert [line for line in node.log(uuid) if line.startswith("daemon")] == [f"daemon of {uuid} as 0"]
        pid = int((mps_dir / uuid / "pipe" / "nvidia-cuda-mps-control.pid").read_text())
        os.kill(pid, signal.SIGKILL)
        third = await node.run(agent, uuid, "1")
        assert len([line for line in node.log(uuid) if line.startswith("daemon")]) == 2
        for ended in (spec, second, third):
            await node.end(agent, ended)
        assert node.log(uuid)[-1] == "quit -t 5"
    finally:
        await agent.stop()


async def test_what_mps_cannot_do_is_told(bench: Bench, mps_dir: Path) -> None:
    node = Node(bench, mps_dir)
    first, second = node.uuids
    agent = node.agent()
    await agent.start()
    try:
        both = {"cuda.shares": {first: "1", second: "1"}}
        spec = bench.spec(slots={"cuda.shares": "2"}, devices=both, generation=1)
        await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
        ended = await bench.until(spec, S.ERROR)
        assert "shares of several GPUs cannot be under MPS" in (ended.message or "")
        (mps_dir / first).mkdir(parents=True, exist_ok=True)
        (mps_dir / first / "broken").touch()
        spec = bench.spec(slots={"cuda.shares": "1"}, devices={"cuda.shares": {first: "1"}}, generation=1)
        await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
        deferred = await bench.until(spec, S.PENDING)
        assert "no CUDA-capable device is detected" in (deferred.message or "")
    finally:
        await agent.stop()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [({"mps_control": ""}, "is not installed"), ({"allocation_mode": "discrete"}, "allocation-mode is discrete")],
)
async def test_a_node_that_cannot_have_mps_says_so_at_its_start(
    bench: Bench, mps_dir: Path, settings: dict[str, Any], problem: str
) -> None:
    node = Node(bench, mps_dir, **settings)
    plugin = CudaPlugin(node.settings, nvml=node.machine, host=ReplayHost(node.machine.recording))
    with pytest.raises(PluginError, match=problem):
        await plugin.init()


@pytest.mark.parametrize("policy", ["report", "end"])
async def test_use_above_the_share_is_seen_and_ended_by_policy(
    bench: Bench, mps_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    bench.options = {"resource": {"device-overuse": policy, "device-overuse-grace": 0.2}}
    node = Node(bench, mps_dir, unit_mem=2 * GIB)
    (uuid, _) = node.uuids
    agent = node.agent()
    await agent.start()
    try:
        spec, neighbour = await node.run(agent, uuid, "1"), await node.run(agent, uuid, "1")
        pids = {spec.kernel_id: 101, neighbour.kernel_id: 102}

        async def pids_of(key: WorkloadKey) -> tuple[int, ...]:
            return (pids[str(key.kernel_id)],)

        monkeypatch.setattr(bench.runtime, "pids", pids_of)
        used = [{"pid": pid, "usedGpuMemory": 1 * GIB} for pid in pids.values()]
        node.machine.say(f"nvmlDeviceGetComputeRunningProcesses {uuid}", [])
        node.machine.say(f"nvmlDeviceGetMPSComputeRunningProcesses {uuid}", used)
        began = time.monotonic()
        used[0]["usedGpuMemory"] = 3 * GIB
        if policy == "end":
            ended = await bench.until(spec, S.TERMINATED)
            assert ended.reason == "anomaly-detected"
            assert time.monotonic() - began >= 0.2
            terminating = await bench.until(spec, S.TERMINATING)
            assert f"it uses 3072 MiB of cuda_mem of the device {uuid}, and its share is 3059 MiB" in (
                terminating.message or ""
            )
        else:
            async with asyncio.timeout(10):
                while "uses more than its share" not in caplog.text:
                    await bench.manager.next_heartbeat()
        assert S.TERMINATING not in bench.statuses(neighbour)
        assert (S.TERMINATING in bench.statuses(spec)) is (policy == "end")
    finally:
        await agent.stop()
