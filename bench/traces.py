"""The GPU cluster trace that was published with FGD (Weng et al., ATC'23), read from a folder that an option names.

Nodes: ``openb_node_list_gpu_node.csv``; workloads: ``openb_pod_list_NAME.csv``; what was published of the policies
there: ``fgd-reference-unallocated-gpu-pct.csv``. A request of one GPU in thousandths, or of several whole ones, is one
quantity of ``cuda.shares``; the models that it names (``gpu_spec``: ``V100M16|V100M32``) are a device request.

Where the workloads of which requests name models are not in the folder, :func:`specified` draws them from ``default``:
models by :data:`MODEL_MIX`.
"""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from ai.backend.common.devices import AllocationStrategy, AllocMapSpec, ComputeDevice, DeviceSlot
from ai.backend.common.ids import AgentId, DeviceId, DeviceName, KernelId, SessionId, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SlotType
from ai.backend.core.allocation.node import PluginDevices
from ai.backend.core.scheduling.snapshot import AgentView, PendingKernel, PendingSession

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_MILLI = Decimal("0.001")
_POD_LIST = "openb_pod_list_"


MODEL_MIX = {
    "T4": 33,
    "V100M16|V100M32": 13,
    "G2": 10,
    "P100": 5,
    "P100|V100M16|V100M32": 3,
    "G3": 2,
    "P100|T4|V100M16|V100M32": 2,
    "G2|P100|T4|V100M16|V100M32": 2,
}
"""How often requests name models: of those among the first 219 of the published ``gpuspec33``
(alibaba/clusterdata, cluster-trace-gpu-v2023)."""
SEVERAL_GPUS_MODEL = "G2"
"""The model that the only request for several GPUs among those names; few other machines have cores for such ones."""


class Request(NamedTuple):
    """The slots and models of a request of a trace. ``device_requests``: none for any model."""

    slots: ResourceSlot
    device_requests: tuple[str, ...] = ()


def _plugin(
    name: str, slot: str, amounts: list[Decimal], quantum: Decimal, spec: AllocMapSpec, model: str | None = None
) -> PluginDevices:
    devices = tuple(
        ComputeDevice(
            device_name=DeviceName(name),
            device_id=DeviceId(str(i)),
            hw_location="",
            model_name=model,
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
            key = row["cpu_milli"], row["memory_mib"], row["gpu"], row["model"]
            if key not in made:
                made[key] = (
                    _plugin("cpu", "cpu", [Decimal(row["cpu_milli"]) / 1000], _MILLI, discrete),
                    _plugin("mem", "mem", [Decimal(row["memory_mib"]) * 2**20], Decimal(1), discrete),
                    _plugin("cuda", "cuda.shares", [Decimal(1)] * int(row["gpu"]), _MILLI, shares, row["model"]),
                )
            agents.append(AgentView(agent_id=AgentId(row["sn"]), architecture="x86_64", plugins=made[key]))
    return tuple(agents)


def workloads(folder: Path) -> list[str]:
    """Returns the names of all workloads in the folder."""
    return sorted(path.stem.removeprefix(_POD_LIST) for path in folder.glob(f"{_POD_LIST}*.csv"))


def models_request(gpu_spec: str) -> tuple[str, ...]:
    """Returns the device request of models that are separated by ``|``; none for an empty text."""
    models = [f'"{model}"' for model in gpu_spec.split("|") if model]
    return (f"model in [{', '.join(models)}]",) if models else ()


def requests(folder: Path, workload: str) -> Counter[Request]:
    """Counts the requests of a workload."""
    counts: Counter[Request] = Counter()
    cached: dict[tuple[str, ...], Request] = {}
    with (folder / f"{_POD_LIST}{workload}.csv").open() as file:
        for row in csv.DictReader(file):
            spec = row.get("gpu_spec") or ""
            key = row["cpu_milli"], row["memory_mib"], row["num_gpu"], row["gpu_milli"], spec
            if key not in cached:
                slots = ResourceSlot(
                    {
                        "cpu": Decimal(row["cpu_milli"]) / 1000,
                        "mem": Decimal(row["memory_mib"]) * 2**20,
                        "cuda.shares": Decimal(row["num_gpu"]) * Decimal(row["gpu_milli"]) / 1000,
                    }
                ).nonzero()
                cached[key] = Request(slots, models_request(spec) if slots["cuda.shares"] else ())
            counts[cached[key]] += 1
    return counts


def specified(folder: Path, per_cent: int, seed: int) -> Counter[Request]:
    """Draws models for so many of the GPU requests of ``default``: of several GPUs :data:`SEVERAL_GPUS_MODEL`."""
    rng = random.Random(seed)
    drawn: Counter[Request] = Counter()
    for request, count in requests(folder, "default").items():
        gpus = request.slots["cuda.shares"]
        for _ in range(count):
            spec = ""
            if gpus and rng.random() * 100 < per_cent:
                (spec,) = rng.choices(list(MODEL_MIX), list(MODEL_MIX.values()))
                spec = SEVERAL_GPUS_MODEL if gpus > 1 else spec
            drawn[Request(request.slots, models_request(spec))] += 1
    return drawn


def session(number: int, request: Request) -> PendingSession:
    kernel = PendingKernel(kernel_id=KernelId(UUID(int=number)), slots=request.slots, image="any")
    return PendingSession(
        session_id=SessionId(UUID(int=number)),
        name=str(number),
        kernels=(kernel,),
        enqueued_at=EPOCH + timedelta(seconds=number),
        device_requests=request.device_requests,
    )


Published = Mapping[tuple[str, str, int], tuple[float, float]]
"""(workload, policy, per cent arrived) -> (mean, standard deviation) of the unallocated GPUs in per cent."""


def published(folder: Path) -> Published:
    with (folder / "fgd-reference-unallocated-gpu-pct.csv").open() as file:
        return {
            (row["workload"].removeprefix(_POD_LIST), row["policy"], int(row["arrived_pct"])): (
                float(row["mean_unallocated_pct"]),
                float(row["sd"]),
            )
            for row in csv.DictReader(file)
        }
