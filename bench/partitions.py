"""Compares GPUs that are cut on demand with GPUs that an administrator has cut beforehand.

100 machines of eight GPUs, each of seven compute slices and eight parts of memory, as MIG has them. Requests for
profiles arrive one at a time, by one of three mixes, until they have asked for all slices; each is placed for good or
refused by the scheduler's core, down to the device. The figure are the slices that are not allocated then. Beforehand,
GPUs are cut in the proportions of the mix ``even``, whatever comes.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from decimal import Decimal
from uuid import UUID

from ai.backend.common.devices import AllocMapSpec, ComputeDevice, DeviceSlot
from ai.backend.common.ids import AgentId, DeviceId, DeviceName, KernelId, SessionId, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SlotType
from ai.backend.core.allocation.node import PluginDevices
from ai.backend.core.scheduling.decide import IncrementalScheduler, decide
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import AgentView, PendingKernel, PendingSession, Snapshot
from bench.figures import Figure, benchmark
from bench.traces import EPOCH

SEEDS = range(5)
_AGENTS, _GPUS, _SLICES, _MEMORY = 100, 8, 7, 8
PROFILES = {"1g": (1, 1), "2g": (2, 2), "3g": (3, 4), "7g": (7, 8)}
"""Compute slices and parts of memory of each profile."""
MIXES = {
    "even": {"1g": 1 / 1, "2g": 1 / 2, "3g": 1 / 3, "7g": 1 / 7},
    "small": {"1g": 0.7, "2g": 0.2, "3g": 0.08, "7g": 0.02},
    "large": {"1g": 0.1, "2g": 0.1, "3g": 0.4, "7g": 0.4},
}
"""How often each profile is requested; ``even`` asks for equally many slices by each."""
BEFOREHAND = (("7g",), ("3g", "3g"), ("2g", "2g", "2g"), ("1g",) * 7)
"""The profiles that four GPUs in turn are cut into: equally many GPUs for each."""


def _slot(profile: str, amount: int, *, is_uncut: bool) -> DeviceSlot:
    slices, memory = PROFILES[profile]
    return DeviceSlot(
        slot_name=SlotName(f"gpu.{profile}"),
        slot_type=SlotType.UNIQUE,
        amount=Decimal(amount),
        exclusive_group="cut" if is_uncut else None,
        counters=(("slices", slices), ("memory", memory)) if is_uncut else (),
    )


def _device(name: str, slots: Sequence[DeviceSlot], counters: tuple[tuple[str, int], ...] = ()) -> ComputeDevice:
    return ComputeDevice(
        device_name=DeviceName("gpu"),
        device_id=DeviceId(name),
        hw_location="",
        slots=tuple(slots),
        counters=counters,
    )


def agents(*, on_demand: bool) -> tuple[AgentView, ...]:
    devices: list[ComputeDevice] = []
    for number in range(_GPUS):
        if on_demand:
            counters = ("slices", _SLICES), ("memory", _MEMORY)
            devices.append(_device(f"{number}", [_slot(name, _SLICES, is_uncut=True) for name in PROFILES], counters))
        else:
            cut = BEFOREHAND[number % len(BEFOREHAND)]
            devices += [_device(f"{number}/{n}", [_slot(name, 1, is_uncut=False)]) for n, name in enumerate(cut)]
    plugins = (PluginDevices(name=DeviceName("gpu"), devices=tuple(devices), alloc_map=AllocMapSpec(kind="discrete")),)
    return tuple(
        AgentView(agent_id=AgentId(f"i-{number:03}"), architecture="x86_64", plugins=plugins)
        for number in range(_AGENTS)
    )


def unallocated(mix: str, seed: int, *, on_demand: bool) -> float:
    """Returns the per cent of the slices that are not allocated when requests for all of them have arrived."""
    rng = random.Random(seed)
    scheduler = IncrementalScheduler(Snapshot(resource_group="partitions", agents=agents(on_demand=on_demand)))
    capacity = _AGENTS * _GPUS * _SLICES
    arrived = allocated = number = 0
    used: dict[tuple[str, str], list[int]] = {}
    while arrived < capacity:
        (profile,) = rng.choices(list(MIXES[mix]), list(MIXES[mix].values()))
        number += 1
        arrived += PROFILES[profile][0]
        slots = ResourceSlot({f"gpu.{profile}": Decimal(1)})
        kernel = PendingKernel(kernel_id=KernelId(UUID(int=number)), slots=slots, image="any")
        session = PendingSession(
            session_id=SessionId(UUID(int=number)), name=str(number), kernels=(kernel,), enqueued_at=EPOCH
        )
        scheduler.enqueue(session)
        for placed in decide(scheduler, Policy(placement="concentrated"), now=EPOCH, rng=rng).placements:
            allocated += PROFILES[profile][0]
            for placement in placed.kernels:
                (device_id,) = placement.devices.device_ids()
                total = used.setdefault((placement.agent_id, device_id.partition("/")[0]), [0, 0])
                total[0] += PROFILES[profile][0]
                total[1] += PROFILES[profile][1]
        scheduler.withdraw(session.session_id)
    if any(slices > _SLICES or memory > _MEMORY for slices, memory in used.values()):
        raise AssertionError("a GPU is cut into more than it has")
    return 100 * (1 - allocated / capacity)


@benchmark("partitions", "unallocated slices of GPUs that are cut on demand, and of GPUs that are cut beforehand")
def partitions() -> Sequence[Figure]:
    figures = []
    for mix in MIXES:
        on_demand = [unallocated(mix, seed, on_demand=True) for seed in SEEDS]
        beforehand = [unallocated(mix, seed, on_demand=False) for seed in SEEDS]
        figures.append(
            Figure(
                name=f"unallocated slices, {mix}",
                value=statistics.fmean(on_demand),
                unit="%",
                target="< cut beforehand",
                holds=statistics.fmean(on_demand) < statistics.fmean(beforehand),
                reference=statistics.fmean(beforehand),
                reference_is="GPUs cut beforehand for the mix even",
                detail={"sd": statistics.stdev(on_demand)},
            )
        )
    return figures
