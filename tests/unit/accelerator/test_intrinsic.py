"""Cores and memory from recorded machines."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ai.backend.accelerator.intrinsic import CpuHost, CPUPlugin, CPUSettings, MemoryHost, MemoryPlugin, MemorySettings
from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.ids import DeviceId, KernelId, SessionId, SlotName
from ai.backend.core.allocation.stock_maps import build_alloc_map
from ai.backend.plugin.accelerator import (
    AbstractComputePlugin,
    HookContext,
    LifecycleCause,
    ManagedState,
    StatContext,
    Workload,
    WorkloadConfig,
)

GIB = 2**30


async def config_of(plugin: AbstractComputePlugin, slot: str, held: dict[str, int]) -> WorkloadConfig:
    allocation = DeviceAllocation(slots={SlotName(slot): {DeviceId(d): Decimal(q) for d, q in held.items()}})
    workload = Workload(id="", type="container", kernel_id=KernelId(UUID(int=1)), session_id=SessionId(UUID(int=2)))
    context = HookContext(cause=LifecycleCause.CREATE, attempt=1, state=ManagedState())
    return await plugin.create_lifecycle_hook(workload, allocation, context).pre_create()


def cpu(root: Path, **settings: Any) -> CPUPlugin:
    for core in range(4):
        (root / f"sys/devices/system/cpu/cpu{core}/node{core // 2}").mkdir(parents=True, exist_ok=True)
    (root / "proc").mkdir(exist_ok=True)
    host = CpuHost(sys=root / "sys", proc=root / "proc", cores=frozenset({0, 1, 3}))
    return CPUPlugin(CPUSettings.model_validate(settings), host=host)


async def test_only_allowed_cores_are_devices(tmp_path: Path) -> None:
    devices = await cpu(tmp_path).list_devices()
    assert [(d.device_id, d.numa_node) for d in devices] == [("0", 0), ("1", 0), ("3", 1)]


async def test_reserved_cores_are_no_devices(tmp_path: Path) -> None:
    assert await cpu(tmp_path, reserved_cpu=2).available_slots() == {"cpu": 1}
    assert await cpu(tmp_path, reserved_cpu=9).available_slots() == {"cpu": 0}


async def test_declared_processors_share_the_cores_in_turn(tmp_path: Path) -> None:
    plugin = cpu(tmp_path, declared_cpu=5, reserved_cpu=1)
    devices = await plugin.list_devices()
    assert [(d.device_id, d.numa_node) for d in devices] == [("1", 0), ("3", 1), ("1.1", 0), ("3.1", 1), ("1.2", 0)]
    config = await config_of(plugin, "cpu", {"1": 1, "1.2": 1, "3.1": 1})
    assert (config.cpuset, config.cpu_limit) == ((1, 3), 3.0)
    assert await cpu(tmp_path, declared_cpu=5, reserved_cpu=9).available_slots() == {"cpu": 0}


async def test_a_workload_is_bound_to_its_cores(tmp_path: Path) -> None:
    config = await config_of(cpu(tmp_path), "cpu", {"3": 1, "0": 1})
    assert (config.cpuset, config.cpu_limit) == ((0, 3), 2.0)


async def taken(plugin: AbstractComputePlugin, slot: str, quantity: int) -> dict[str, int]:
    """What a session gets of an idle node."""
    spec = plugin.alloc_map_spec()
    assert spec is not None
    allocation = build_alloc_map(spec, await plugin.list_devices()).allocate({SlotName(slot): Decimal(quantity)})
    return {str(device): int(amount) for device, amount in allocation.slots[SlotName(slot)].items()}


@pytest.mark.parametrize(("policy", "expected"), [("prefer-single-node", {"0", "1"}), ("interleaved", {"0", "3"})])
async def test_cores_of_one_node_or_of_every_node(tmp_path: Path, policy: str, expected: set[str]) -> None:
    assert set(await taken(cpu(tmp_path, **{"affinity-policy": policy}), "cpu", 2)) == expected


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("prefer-single-node", {"node0": 2 * GIB}), ("interleaved", {"node0": GIB, "node1": GIB})],
)
async def test_memory_of_one_node_or_of_every_node(tmp_path: Path, policy: str, expected: dict[str, int]) -> None:
    plugin = memory(tmp_path, {0: 4, 1: 4}, **{"affinity-policy": policy})
    assert await taken(plugin, "mem", 2 * GIB) == expected


async def test_use_is_measured_between_two_calls(tmp_path: Path) -> None:
    plugin = cpu(tmp_path)
    stat = tmp_path / "proc/stat"
    stat.write_text("cpu0 0 0 0 100 0 0 0 0\ncpu1 0 0 0 100 0 0 0 0\nctxt 1\n")
    assert list(await plugin.gather_node_metrics(StatContext(at=0.0))) == []
    stat.write_text("cpu0 50 0 25 120 5 0 0 0\ncpu1 0 0 0 200 0 0 0 0\nctxt 2\n")
    found = {m.device_id: (m.value, m.capacity) for m in await plugin.gather_node_metrics(StatContext(at=1.0))}
    assert found == {None: (75.0, 200.0), "0": (75.0, 100.0), "1": (0.0, 100.0)}


def memory(root: Path, nodes: dict[int, int], *, limit: str | None = None, **settings: Any) -> MemoryPlugin:
    for node, gib in nodes.items():
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "meminfo").write_text(f"Node {node} MemTotal:       {gib * 2**20} kB\n")
    (root / "proc").mkdir()
    total = sum(nodes.values()) * 2**20
    (root / "proc/meminfo").write_text(f"MemTotal: {total} kB\nMemFree: 0 kB\nMemAvailable: {total // 2} kB\n")
    if limit is not None:
        (root / "sys/fs/cgroup").mkdir(parents=True)
        (root / "sys/fs/cgroup/memory.max").write_text(limit + "\n")
    return MemoryPlugin(MemorySettings.model_validate(settings), host=MemoryHost(sys=root / "sys", proc=root / "proc"))


async def test_one_node_is_one_device(tmp_path: Path) -> None:
    plugin = memory(tmp_path, {0: 8}, reserved_mem="1g")
    (device,) = await plugin.list_devices()
    assert (device.device_id, int(device.slots[0].amount), device.numa_node) == (DeviceId("root"), 7 * GIB, 0)
    config = await config_of(plugin, "mem", {"root": GIB})
    assert (config.memory_limit_bytes, config.memory_nodes) == (GIB, ())


async def test_several_nodes_are_several_devices(tmp_path: Path) -> None:
    plugin = memory(tmp_path, {0: 4, 1: 4}, reserved_mem="1g")
    assert {d.device_id: d.slots[0].amount for d in await plugin.list_devices()} == {"node0": 3 * GIB, "node1": 4 * GIB}
    config = await config_of(plugin, "mem", {"node1": GIB, "node0": 1})
    assert (config.memory_limit_bytes, config.memory_nodes) == (GIB + 1, (0, 1))


@pytest.mark.parametrize(("limit", "total"), [("max", 8 * GIB), (str(2 * GIB), 2 * GIB), (str(2**60), 8 * GIB)])
async def test_the_limit_of_a_container_counts(tmp_path: Path, limit: str, total: int) -> None:
    plugin = memory(tmp_path, {0: 4, 1: 4}, limit=limit)
    assert await plugin.available_slots() == {"mem": total}


async def test_the_use_of_memory(tmp_path: Path) -> None:
    (found,) = await memory(tmp_path, {0: 8}).gather_node_metrics(StatContext(at=0.0))
    assert (found.value, found.capacity) == (4.0 * GIB, 8.0 * GIB)
