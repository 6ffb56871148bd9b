"""Clusters and queues for the scheduler's benchmarks.

The number of cores of a request follows the model of Lublin and Feitelson ("The workload on parallel supercomputers",
JPDC 63, 2003) with the parameters published there for batch jobs: serial with probability 0.244, a power of two with
0.576, else log2 of the size from a two-stage uniform distribution (0.8, 4.5, log2 of the largest; 0.86 of the lower
stage). Memory is 2 to 8 GiB for a core. With accelerators three of four requests want 1, 2, 4 or 8 of them (6 : 2 : 1 :
1) with at most 8 cores each. Agents are two-socket machines of 64 cores and 512 GiB; their devices lie on two NUMA
nodes. A session belongs to one of 1,000 keypairs, each with a quota.
"""

from __future__ import annotations

import math
import random
from collections import deque
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

from ai.backend.common.devices import AllocMapSpec, ComputeDevice, DeviceSlot
from ai.backend.common.ids import AgentId, DeviceId, DeviceName, KernelId, SessionId, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SlotType
from ai.backend.common.structs import replace
from ai.backend.core.allocation.node import PluginDevices
from ai.backend.core.scheduling.decide import IncrementalScheduler, decide
from ai.backend.core.scheduling.ordering.fair_share import decay_averages, occupied_by_scope
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import AgentView, HeldKernel, PendingKernel, PendingSession, Quota, Snapshot
from ai.backend.infra.process.memory import collector_paused

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CORES, MEMORY_GIB = 64, 512
_GIB = 2**30
_DISCRETE = AllocMapSpec(kind="discrete")


def _devices(name: str, slot: str, count: int, amount: int) -> PluginDevices:
    devices = tuple(
        ComputeDevice(
            device_name=DeviceName(name),
            device_id=DeviceId(str(i)),
            hw_location="",
            numa_node=i * 2 // count,
            slots=(DeviceSlot(slot_name=SlotName(slot), slot_type=SlotType.COUNT, amount=Decimal(amount)),),
        )
        for i in range(count)
    )
    return PluginDevices(name=DeviceName(name), devices=devices, alloc_map=_DISCRETE)


def machines(count: int, accelerators: int) -> tuple[AgentView, ...]:
    plugins = [_devices("cpu", "cpu", CORES, 1), _devices("mem", "mem", 2, MEMORY_GIB // 2 * _GIB)]
    if accelerators:
        plugins.append(_devices("cuda", "cuda.device", accelerators, 1))
    devices = tuple(plugins)
    return tuple(AgentView(agent_id=AgentId(f"i-{n:06}"), architecture="x86_64", plugins=devices) for n in range(count))


def amounts(agents: tuple[AgentView, ...]) -> dict[tuple[str, str, str], Decimal]:
    """(agent, slot, device) -> what the device has."""
    return {
        (a.agent_id, s.slot_name, d.device_id): s.amount
        for a in agents
        for p in a.plugins
        for d in p.devices
        for s in d.slots
    }


def totals(view: AgentView) -> dict[str, Decimal]:
    sums: dict[str, Decimal] = {}
    for (_, slot, _), amount in amounts((view,)).items():
        sums[slot] = sums.get(slot, Decimal(0)) + amount
    return sums


def cores(rng: random.Random, largest: int = CORES) -> int:
    """The size of a job by Lublin and Feitelson."""
    if rng.random() < 0.244:
        return 1
    low, middle, high = 0.8, 4.5, math.log2(largest)
    size = rng.uniform(low, middle) if rng.random() < 0.86 else rng.uniform(middle, high)
    return min(largest, 2 ** round(size) if rng.random() < 0.576 / (1 - 0.244) else round(2**size))


def request(rng: random.Random, accelerators: int) -> ResourceSlot:
    memory = cores(rng)
    slots = {}
    if accelerators and rng.random() < 0.75:
        units = min(accelerators, rng.choices((1, 2, 4, 8), (6, 2, 1, 1))[0])
        memory = min(memory, 8 * units)
        slots["cuda.device"] = Decimal(units)
    slots |= {"cpu": Decimal(memory), "mem": Decimal(min(MEMORY_GIB // 2, memory * rng.randint(2, 8)) * _GIB)}
    return ResourceSlot(slots)


def session(number: int, slots: ResourceSlot, owner: int = 0) -> PendingSession:
    return PendingSession(
        session_id=SessionId(UUID(int=number)),
        name=f"s{number}",
        kernels=(PendingKernel(kernel_id=KernelId(UUID(int=number)), slots=slots, image=f"image-{number % 10}"),),
        enqueued_at=NOW + timedelta(milliseconds=number),
        quotas=(f"keypair:{owner}",),
        scope=("default", f"project-{owner}", f"user-{owner}"),
    )


def snapshot(*, agents: int, pending: int, accelerators: int, seed: int = 7) -> Snapshot:
    rng = random.Random(seed)
    limit = ResourceSlot({"cpu": Decimal(100_000)})
    return Snapshot(
        resource_group="bench",
        agents=machines(agents, accelerators),
        pending=tuple(session(n, request(rng, accelerators), rng.randrange(1_000)) for n in range(pending)),
        quotas={f"keypair:{n}": Quota(label="your keypair", limit=limit) for n in range(1_000)},
    )


def full(*, agents: int, pending: int) -> Snapshot:
    """Every agent holds eight kernels with an accelerator each; everybody who waits wants two or more."""
    made = snapshot(agents=agents, pending=0, accelerators=8)
    rng = random.Random(8)
    waiting: list[PendingSession] = []
    while len(waiting) < pending:
        slots = request(rng, 8)
        if slots["cuda.device"] >= 2:
            waiting.append(session(len(waiting), slots, rng.randrange(1_000)))
    one = ResourceSlot({"cpu": Decimal(6), "mem": Decimal(32 * _GIB), "cuda.device": Decimal(1)})
    views = [
        replace(
            view,
            held=tuple(HeldKernel(kernel_id=KernelId(UUID(int=10**9 + number * 8 + n)), slots=one) for n in range(8)),
        )
        for number, view in enumerate(made.agents)
    ]
    return replace(made, agents=tuple(views), pending=tuple(waiting))


def run_fair_share(*, agents: int, sessions: int, projects: int) -> tuple[int, int]:
    """Let all sessions of all projects run for 1 to 10 minutes each, a pass every minute; (passes, sessions placed)."""
    rng = random.Random(9)
    queue = [session(n, request(rng, 8), rng.randrange(projects)) for n in range(sessions)]
    scheduler = IncrementalScheduler(
        replace(snapshot(agents=agents, pending=0, accelerators=8), pending=tuple(queue), quotas={})
    )
    by_id = {s.session_id: s for s in queue}
    used: dict[str, ResourceSlot] = {}
    running: deque[list[tuple[AgentId, KernelId, PendingSession]]] = deque([[] for _ in range(11)])
    passes = placed = 0
    while placed < sessions:
        for agent_id, kernel_id, _ in running.popleft():
            scheduler.release(agent_id, kernel_id)
        running.append([])
        held = occupied_by_scope([(who.scope, who.total) for ends in running for _, _, who in ends])
        used = decay_averages(used, held, elapsed_s=60, half_life_s=3600)
        scheduler.set_usage(held, used)
        with collector_paused():
            plan = decide(scheduler, Policy(order="fair-share"), now=NOW, rng=rng)
        for placement in plan.placements:
            end = running[rng.randrange(10)]
            end += [(k.agent_id, k.kernel_id, by_id[placement.session_id]) for k in placement.kernels]
        placed += len(plan.placements)
        passes += 1
    return passes, placed
