"""Replays every machine description of the tests through the whole agent: devices, sessions, metrics, illness.

The descriptions are written from documentation (``tests/data/nvml``, ``tests/data/sysfs``): they prove the code, not
the hardware. ``docs/reference/accelerators/proofs.md`` lists them.
"""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.accelerator.cuda.plugin import CudaPlugin
from ai.backend.accelerator.cuda.replay import ReplayHost
from ai.backend.accelerator.cuda.settings import CudaSettings
from ai.backend.accelerator.rocm.plugin import RocmPlugin
from ai.backend.accelerator.sysfs import families
from ai.backend.agent.composition import Agent
from ai.backend.common.errors import ResourceError
from ai.backend.common.slots import format_quantity
from ai.backend.common.states import KernelStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import ClaimSpec, CreateKernels, DestroyKernel
from ai.backend.common.wire.reports import AgentReport
from ai.backend.plugin.accelerator import AbstractComputePlugin
from ai.backend.plugin.discovery import PluginSource
from tests.component.agent.conftest import Bench
from tests.support.cuda import FIXTURES, Machine
from tests.support.trees import TREES, roots

S = KernelStatus
NVML = sorted(path.name for path in FIXTURES.glob("*.json") if path.name != "no-gpu.json")
SYSFS = sorted(path.stem for path in TREES.glob("*.tree"))
VARIABLES = {
    "cuda": "CUDA_VISIBLE_DEVICES", "rocm": "ROCR_VISIBLE_DEVICES", "atom": "RBLN_DEVICES", "rngd": "FURIOSA_DEVICES",
    "warboy": "FURIOSA_DEVICES", "tpu": "TPU_VISIBLE_CHIPS", "gaudi2": "HABANA_VISIBLE_DEVICES",
    "gaudi3": "HABANA_VISIBLE_DEVICES", "tt-n300": "TT_VISIBLE_DEVICES",
}  # fmt: skip
"""The variables by which programs learn their devices; IPU and LPU have none."""
IN_SHARES = CudaSettings(allocation_mode="fractional")


def nvml_plugin(fixture: str, settings: CudaSettings | None = None) -> type[AbstractComputePlugin]:
    values = settings or CudaSettings()
    machine = Machine(fixture)

    class Plugin(CudaPlugin):
        capabilities = type(CudaPlugin.capabilities)(process_metrics=True)  # in the agent's own process

        def __init__(self, settings: Any = None) -> None:
            super().__init__(values, nvml=machine, host=ReplayHost(machine.recording))

    return Plugin


def sysfs_plugin(tree: str, place: Path) -> type[AbstractComputePlugin]:
    base: Any = RocmPlugin if tree.startswith("rocm") else getattr(families, tree.replace("-", "_"))
    values = roots(tree, place)

    class Plugin(base):  # type: ignore[misc]  # one of several classes
        def __init__(self, settings: Any = None) -> None:
            super().__init__(base.settings_model(**values))

    return Plugin


def source_of(plugin: type[AbstractComputePlugin]) -> PluginSource:
    return PluginSource(plugin.key, lambda: plugin)


async def offering(bench: Bench, key: str) -> AgentReport:
    """Waits for a heartbeat with devices of the plugin."""
    async with asyncio.timeout(30):
        while True:
            await bench.manager.next_heartbeat()
            report = bench.manager.heartbeats[-1]
            if any(device["device_name"] == key for device in report.devices):
                return report


async def replay(bench: Bench, plugin: type[AbstractComputePlugin]) -> None:
    """Runs a session on each device that is offered, checks what it gets, and that ill devices are not given."""
    bench.options = {"kernel-lifecycles": {"plugin-timeout": 20.0}}
    agent = Agent(bench.settings(), bench.runtime, bench.manager, plugins=[source_of(plugin)])
    bench.agents.append(agent)
    await agent.start()
    report = await offering(bench, plugin.key)
    (state,) = [item for item in report.plugins if item.name == plugin.key]
    assert (state.healthy, state.reason) == (True, None)
    devices = {device["device_id"]: device for device in report.devices}
    healthy = {
        device_id
        for device_id, device in devices.items()
        if device.get("health", "healthy") == "healthy"
        and any(float(slot["amount"]) for slot in device["slots"])  # a GPU in MIG mode offers its instances
    }
    specs = {}
    for slot in report.slots:
        for _ in range(int(float(slot.amount))):
            spec = await bench.run(agent, slots={slot.slot_name: "1"})
            running = await bench.until(spec, S.RUNNING)
            (held,) = (running.devices or {})[slot.slot_name]
            specs[held] = spec
    assert healthy, "a description without a device that works proves nothing"
    assert set(specs) == healthy, "each device that works was given once, and no other"
    for device_id, spec in specs.items():
        (workload,) = [w for w in bench.runtime.specs.values() if str(w.key.kernel_id) == spec.kernel_id]
        variable = VARIABLES.get(plugin.key, VARIABLES.get(plugin.key.partition("-")[0]))
        if variable is not None:
            assert workload.config.env_vars[variable], device_id
        assert workload.config.devices, "a program opens the device by a file"
    async with asyncio.timeout(30):
        while not all(
            spec.kernel_id in (bench.manager.stats[-1].kernels if bench.manager.stats else ())
            for spec in specs.values()
        ):
            await bench.manager.next_heartbeat()
    for spec in specs.values():
        await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
        await bench.until(spec, S.TERMINATED)
    await agent.stop()


@pytest.mark.parametrize("fixture", NVML)
async def test_an_nvml_machine_serves_sessions(bench: Bench, fixture: str) -> None:
    await replay(bench, nvml_plugin(fixture))


@pytest.mark.parametrize("fixture", NVML)
async def test_sessions_of_a_claim_use_a_gpu_at_once_in_time_slices(bench: Bench, fixture: str) -> None:
    """In the mode of shares, on every machine: each session of the claim sees the same whole GPUs, and nobody else."""
    bench.options = {"kernel-lifecycles": {"plugin-timeout": 20.0}}
    agent = Agent(bench.settings(), bench.runtime, bench.manager, plugins=[source_of(nvml_plugin(fixture, IN_SHARES))])
    bench.agents.append(agent)
    await agent.start()
    report = await offering(bench, "cuda")
    (state,) = [plugin for plugin in report.plugins if plugin.name == "cuda"]
    assert state.alloc_map is not None
    assert state.alloc_map["shareable"]
    amounts = {
        device["device_id"]: format_quantity(Decimal(slot["amount"]))
        for device in report.devices
        for slot in device["slots"]
        if slot["slot_name"] == "cuda.shares" and device.get("health") == "healthy" and float(slot["amount"])
    }
    if not amounts:  # its GPUs are in MIG mode, whose instances are given whole, to one session at a time
        assert any(slot["slot_name"] != "cuda.shares" for device in report.devices for slot in device["slots"])
        return
    device_id, total = next(iter(amounts.items()))
    plan = {"cuda.shares": {device_id: total}}
    claim = ClaimSpec(id=str(uuid4()), slots={"cuda.shares": total})
    first = await bench.run(
        agent, slots={"cuda.shares": total}, devices=plan, generation=report.generation, claim=claim
    )
    assert (await bench.until(first, S.RUNNING)).devices == plan
    bound = replace(claim, devices=plan, is_bound=True)
    second = await bench.run(agent, slots={"cuda.shares": total}, claim=bound)
    assert (await bench.until(second, S.RUNNING)).devices == plan
    configs = [
        workload.config
        for spec in (first, second)
        for workload in bench.runtime.specs.values()
        if str(workload.key.kernel_id) == spec.kernel_id
    ]
    assert configs[0].devices == configs[1].devices
    assert configs[0].env_vars == configs[1].env_vars
    for ended in (first, second):
        stranger = CreateKernels(kernels=[bench.spec(slots={"cuda.shares": total}, devices=plan)])
        if len(amounts) == 1:
            with pytest.raises(ResourceError):
                await agent.commands.create_kernels(stranger)
        await agent.commands.destroy_kernel(DestroyKernel(kernel_id=ended.kernel_id, attempt=1))
        await bench.until(ended, S.TERMINATED)
    await agent.stop()


@pytest.mark.parametrize("tree", SYSFS)
async def test_a_sysfs_machine_serves_sessions(bench: Bench, tree: str, tmp_path: Path) -> None:
    await replay(bench, sysfs_plugin(tree, tmp_path / "machine"))


async def test_a_machine_without_a_gpu_says_so(bench: Bench) -> None:
    plugin = nvml_plugin("no-gpu.json")
    agent = Agent(bench.settings(), bench.runtime, bench.manager, plugins=[source_of(plugin)])
    bench.agents.append(agent)
    await agent.start()
    await bench.manager.next_heartbeat()
    report = bench.manager.heartbeats[-1]
    assert not report.devices
    assert all(slot.amount == "0" for slot in report.slots)
