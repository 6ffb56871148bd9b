"""What the cuda plugin measures, and under which names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from uuid import UUID

import pytest

from ai.backend.accelerator.cuda.nvml import Code
from ai.backend.accelerator.cuda.plugin import CudaPlugin
from ai.backend.accelerator.cuda.settings import CudaSettings
from ai.backend.accelerator.cuda.tables import METRICS
from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.ids import DeviceId, KernelId, SlotName
from ai.backend.plugin.accelerator import Measurement, StatContext
from tests.support.cuda import A100, T4, Machine, plugin_on

A, B = "GPU-74000000-0000-4000-8000-000000000001", "GPU-74000001-0000-4000-8000-000000000002"
SLICE = "MIG-a1000000-0000-4000-8000-000000000011"
ONE, TWO = KernelId(UUID(int=1)), KernelId(UUID(int=2))
MIB = 2**20


@pytest.fixture
def machine() -> Machine:
    return Machine(T4)


@pytest.fixture
async def plugin(machine: Machine) -> AsyncIterator[CudaPlugin]:
    plugin = plugin_on(machine, CudaSettings(allocation_mode="either"))
    await plugin.init()
    yield plugin
    await plugin.cleanup()


def holding(slot: str, device: str, quantity: str = "1") -> DeviceAllocation:
    return DeviceAllocation(slots={SlotName(slot): {DeviceId(device): Decimal(quantity)}})


def values(found: list[Measurement] | tuple[Measurement, ...]) -> dict[str, tuple[float, float | None]]:
    return {m.key: (m.value, m.capacity) for m in found}


async def test_a_gpu_is_measured_in_our_units_and_dcgms(plugin: CudaPlugin) -> None:
    found = {m.key: m for m in await plugin.gather_node_metrics(StatContext(at=1.0)) if m.device_id == A}
    assert found.keys() == METRICS.keys()
    exported = {
        m.exported.name: round(m.value * m.exported.factor, 6) for m in found.values() if m.exported is not None
    }
    assert exported == {
        "DCGM_FI_DEV_FB_USED": 2051,
        "DCGM_FI_DEV_GPU_UTIL": 62,
        "DCGM_FI_DEV_MEM_COPY_UTIL": 20,
        "DCGM_FI_DEV_POWER_USAGE": 9,
        "DCGM_FI_DEV_GPU_TEMP": 38,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 123456789,
        "DCGM_FI_DEV_SM_CLOCK": 1390,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0,
        "DCGM_FI_DEV_XID_ERRORS": 0,
    }
    assert found["cuda_mem"].capacity == 15360 * MIB
    assert found["cuda_power"].capacity == 70.0


async def test_a_lost_gpu_is_measured_no_more(plugin: CudaPlugin, machine: Machine) -> None:
    machine.lost.add(A)
    found = await plugin.gather_node_metrics(StatContext(at=1.0))
    assert {m.key for m in found if m.device_id == A} == {"cuda_xid"}
    assert {m.key for m in found if m.device_id == B} == METRICS.keys()


async def test_workloads_on_one_gpu_are_told_apart_by_their_processes(plugin: CudaPlugin) -> None:
    ctx = StatContext(
        at=1000.0,
        allocations={ONE: holding("cuda.shares", A, "2.5"), TWO: holding("cuda.shares", A, "1.25")},
        pids={ONE: (4242, 1), TWO: (4243, 2)},
    )
    found = await plugin.gather_workload_metrics(ctx, [ONE, TWO])
    half = (15360 - 64) * MIB / 2
    assert values(tuple(found[ONE])) == {"cuda_mem": (1536 * MIB, half), "cuda_util": (50, 50)}, "the latest sample"
    assert values(tuple(found[TWO])) == {"cuda_mem": (512 * MIB, half / 2), "cuda_util": (12, 25)}


async def test_more_than_a_share_is_shown_as_it_is(plugin: CudaPlugin) -> None:
    ctx = StatContext(at=1000.0, allocations={ONE: holding("cuda.shares", A, "0.05")}, pids={ONE: (4242,)})
    (mem, util) = (await plugin.gather_workload_metrics(ctx, [ONE]))[ONE]
    assert (mem.value, mem.capacity) == (1536 * MIB, 1536 * MIB)
    assert (util.value, util.capacity) == (50, 50)


async def test_without_processes_a_whole_gpu_speaks_for_its_holder_and_a_share_not(plugin: CudaPlugin) -> None:
    ctx = StatContext(at=1.0, allocations={ONE: holding("cuda.device", A), TWO: holding("cuda.shares", B)})
    found = await plugin.gather_workload_metrics(ctx, [ONE, TWO])
    assert values(tuple(found[ONE])) == {"cuda_mem": (2051 * MIB, 15360 * MIB), "cuda_util": (62, 100)}
    assert list(found[TWO]) == []


async def test_where_processes_may_not_be_seen_the_whole_gpu_counts(plugin: CudaPlugin, machine: Machine) -> None:
    machine.fail(f"nvmlDeviceGetComputeRunningProcesses {A}", Code.NO_PERMISSION)
    ctx = StatContext(at=1.0, allocations={ONE: holding("cuda.device", A)}, pids={ONE: (4242,)})
    assert values(tuple((await plugin.gather_workload_metrics(ctx, [ONE]))[ONE]))["cuda_mem"][0] == 2051 * MIB


@pytest.mark.parametrize(("code", "util"), [(Code.NOT_FOUND, 0), (Code.NOT_SUPPORTED, 62)])
async def test_no_sample_is_no_use_unless_there_are_none_at_all(
    plugin: CudaPlugin, machine: Machine, code: Code, util: int
) -> None:
    machine.fail(f"nvmlDeviceGetProcessUtilization {A} *", code)
    ctx = StatContext(at=1.0, allocations={ONE: holding("cuda.device", A)}, pids={ONE: (4242,)})
    found = values(tuple((await plugin.gather_workload_metrics(ctx, [ONE]))[ONE]))
    assert found == {"cuda_mem": (1536 * MIB, 15360 * MIB), "cuda_util": (util, 100)}


async def test_an_instance_tells_its_memory_only() -> None:
    plugin = plugin_on(Machine(A100))
    await plugin.init()
    try:
        ctx = StatContext(at=1.0, allocations={ONE: holding("cuda.device:10g-mig", SLICE)})
        found = await plugin.gather_workload_metrics(ctx, [ONE])
        assert values(tuple(found[ONE])) == {"cuda_mem": (11 * MIB, 9856 * MIB)}
    finally:
        await plugin.cleanup()


async def test_processes_are_measured_over_all_gpus(plugin: CudaPlugin, machine: Machine) -> None:
    machine.say(f"nvmlDeviceGetComputeRunningProcesses {B}", [{"pid": 4242, "usedGpuMemory": None}])
    found = await plugin.gather_process_metrics(StatContext(at=1000.0), {4242: ONE, 4243: TWO, 9: TWO})
    assert {pid: values(tuple(ms)) for pid, ms in found.items()} == {
        4242: {"cuda_mem": (1536 * MIB, None), "cuda_util": (50, 200)},
        4243: {"cuda_mem": (512 * MIB, None), "cuda_util": (12, 100)},
    }
