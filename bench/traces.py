"""The GPU cluster trace that was published with FGD (Weng et al., ATC'23), read from a folder that an option names.

Nodes: ``openb_node_list_gpu_node.csv``; workloads: ``openb_pod_list_NAME.csv``; what was published of the policies
there: ``fgd-reference-unallocated-gpu-pct.csv``. A request of one GPU in thousandths, or of several whole ones, is one
quantity of ``cuda.shares``.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

from ai.backend.common.devices import AllocationStrategy, AllocMapSpec, ComputeDevice, DeviceSlot
from ai.backend.common.ids import AgentId, DeviceId, DeviceName, KernelId, SessionId, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SlotType
from ai.backend.core.allocation.node import PluginDevices
from ai.backend.core.scheduling.snapshot import AgentView, PendingKernel, PendingSession

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_MILLI = Decimal("0.001")


def _plugin(name: str, slot: str, amounts: list[Decimal], quantum: Decimal, spec: AllocMapSpec) -> PluginDevices:
    devices = tuple(
        ComputeDevice(
            device_name=DeviceName(name),
            device_id=DeviceId(str(i)),
            hw_location="",
            slots=(DeviceSlot(slot_name=SlotName(slot), slot_type=SlotType.COUNT, amount=amount, quantum=quantum),),
        )
        for i, amount in enumerate(amounts)
    )
    return PluginDevices(name=DeviceName(name), devices=devices, alloc_map=spec)


def nodes(folder: Path) -> tuple[AgentView, ...]:
    """The machines with GPUs."""
    discrete = AllocMapSpec(kind="discrete")
    shares = AllocMapSpec(kind="fractional", strategy=AllocationStrategy.LEAST_FRAGMENTATION)
    made: dict[tuple[str, ...], tuple[PluginDevices, ...]] = {}
    agents = []
    with (folder / "openb_node_list_gpu_node.csv").open() as file:
        for row in csv.DictReader(file):
            key = row["cpu_milli"], row["memory_mib"], row["gpu"]
            if key not in made:
                made[key] = (
                    _plugin("cpu", "cpu", [Decimal(row["cpu_milli"]) / 1000], _MILLI, discrete),
                    _plugin("mem", "mem", [Decimal(row["memory_mib"]) * 2**20], Decimal(1), discrete),
                    _plugin("cuda", "cuda.shares", [Decimal(1)] * int(row["gpu"]), _MILLI, shares),
                )
            agents.append(AgentView(agent_id=AgentId(row["sn"]), architecture="x86_64", plugins=made[key]))
    return tuple(agents)


def requests(folder: Path, workload: str) -> Counter[ResourceSlot]:
    """Counts the requests of a workload."""
    counts: Counter[ResourceSlot] = Counter()
    cached: dict[tuple[str, ...], ResourceSlot] = {}
    with (folder / f"openb_pod_list_{workload}.csv").open() as file:
        for row in csv.DictReader(file):
            key = row["cpu_milli"], row["memory_mib"], row["num_gpu"], row["gpu_milli"]
            if key not in cached:
                cached[key] = ResourceSlot(
                    {
                        "cpu": Decimal(row["cpu_milli"]) / 1000,
                        "mem": Decimal(row["memory_mib"]) * 2**20,
                        "cuda.shares": Decimal(row["num_gpu"]) * Decimal(row["gpu_milli"]) / 1000,
                    }
                ).nonzero()
            counts[cached[key]] += 1
    return counts


def session(number: int, slots: ResourceSlot) -> PendingSession:
    return PendingSession(
        session_id=SessionId(UUID(int=number)),
        name=str(number),
        kernels=(PendingKernel(kernel_id=KernelId(UUID(int=number)), slots=slots, image="any"),),
        enqueued_at=EPOCH + timedelta(seconds=number),
    )


Published = Mapping[tuple[str, str, int], tuple[float, float]]
"""(workload, policy, per cent arrived) -> (mean, standard deviation) of the unallocated GPUs in per cent."""


def published(folder: Path) -> Published:
    with (folder / "fgd-reference-unallocated-gpu-pct.csv").open() as file:
        return {
            (row["workload"].removeprefix("openb_pod_list_"), row["policy"], int(row["arrived_pct"])): (
                float(row["mean_unallocated_pct"]),
                float(row["sd"]),
            )
            for row in csv.DictReader(file)
        }
