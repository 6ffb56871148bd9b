"""Which share of the GPUs stays unallocated when requests only arrive, on the trace that was published with FGD.

For each seed requests are drawn with replacement until they ask for 130 % of the GPUs, and shuffled. They arrive one at
a time and are placed for good or refused. What is not allocated when 100 % have arrived is the figure.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from ai.backend.common.slots import ResourceSlot
from ai.backend.core.scheduling.decide import Board
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import Snapshot
from bench import traces
from bench.figures import Figure, benchmark, option

SEEDS = range(42, 52)
WORKLOADS = ("default", "cpu100", "gpushare40", "multigpu20")
_GPU = "cuda.shares"


def arrivals(
    requests: Sequence[ResourceSlot], weights: Sequence[int], capacity: float, seed: int
) -> list[ResourceSlot]:
    rng = random.Random(seed)
    bounds = list(accumulate(weights))
    found: list[ResourceSlot] = []
    asked = 0.0
    while asked < 1.3 * capacity:
        (drawn,) = rng.choices(requests, cum_weights=bounds)
        found.append(drawn)
        asked += float(drawn[_GPU])
    rng.shuffle(found)
    return found


def unallocated(folder: Path, workload: str, placement: str, seed: int) -> float:
    """Per cent of the GPUs when 100 % of what they could serve has arrived.

    Raises:
        AssertionError: a device has given more than it has.
    """
    agents = traces.nodes(folder)
    counted = traces.requests(folder, workload)
    board = Board(Snapshot(resource_group="trace", agents=agents, workload=tuple(counted.items())))
    capacity = float(board.capacity[_GPU])
    policy, rng, now = Policy(placement=placement), random.Random(seed), traces.EPOCH
    arrived = 0.0
    given: dict[tuple[str, str, str], float] = {}
    for number, slots in enumerate(arrivals(list(counted), list(counted.values()), capacity, seed)):
        if arrived >= capacity:
            break
        arrived += float(slots[_GPU])
        who = traces.session(number, slots)
        board.enqueue(who)
        for placed in board.plan(policy, now=now, rng=rng).placements:
            for kernel in placed.kernels:
                for slot, devices in kernel.devices.slots.items():
                    for device, quantity in devices.items():
                        key = kernel.agent_id, slot, device
                        given[key] = given.get(key, 0.0) + float(quantity)
        board.withdraw(who.session_id)
    amounts: dict[tuple[str, str, str], float] = {
        (a.agent_id, s.slot_name, d.device_id): float(s.amount)
        for a in agents
        for p in a.plugins
        for d in p.devices
        for s in d.slots
    }
    over = [key for key, quantity in given.items() if quantity > amounts[key] * (1 + 1e-9)]
    if over:
        raise AssertionError(f"{over[0]} has given more than it has")
    allocated = sum(quantity for (_, slot, _), quantity in given.items() if slot == _GPU)
    return 100 * (1 - allocated / capacity)


@benchmark("fragmentation", "unallocated GPUs on the FGD trace, arrival only; --data names its folder")
def fragmentation() -> Sequence[Figure]:
    folder = Path(option("data"))
    reference = traces.published(folder)
    figures = []
    for workload in WORKLOADS:
        values = []
        for seed in SEEDS:
            values.append(unallocated(folder, workload, "least-fragmentation", seed))
            sys.stderr.write(f"  {workload} seed {seed}: {values[-1]:.3f} %\n")
        mean, published = statistics.fmean(values), reference[workload, "06-FGD"]
        figures.append(
            Figure(
                name=f"unallocated GPUs, {workload}",
                value=mean,
                unit="%",
                target=f"< {published[0]:.2f} (FGD)",
                holds=mean < published[0],
                reference=published[0],
                reference_is="FGD as published, mean of ten seeds",
                detail={
                    "sd": statistics.stdev(values),
                    "min": min(values),
                    "max": max(values),
                    "their sd": published[1],
                },
            )
        )
    return figures
