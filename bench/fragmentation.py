"""Which share of the GPUs stays unallocated when requests only arrive, on the trace that was published with FGD.

For each seed requests are drawn with replacement until they ask for 130 % of the GPUs, and shuffled. They arrive one at
a time and are placed for good or refused. What is not allocated when 100 % have arrived is the figure; how it becomes
so is drawn into docs/fragmentation.png.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from ai.backend.common.slots import ResourceSlot
from ai.backend.core.scheduling.decide import IncrementalScheduler, decide
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import Snapshot
from bench import traces
from bench.figures import Figure, benchmark, option
from bench.plots import draw

SEEDS = range(42, 52)
READ_AT = (90, 95, 100, 110, 120, 130)
WORKLOADS = ("default", "cpu100", "gpushare40", "multigpu20")
_GPU = "cuda.shares"


def arrivals(
    requests: Sequence[ResourceSlot], weights: Sequence[int], capacity: float, seed: int
) -> list[ResourceSlot]:
    rng = random.Random(seed)
    bounds = list(accumulate(weights))
    found: list[ResourceSlot] = []
    requested = 0.0
    while requested < 1.3 * capacity:
        (drawn,) = rng.choices(requests, cum_weights=bounds)
        found.append(drawn)
        requested += float(drawn[_GPU])
    rng.shuffle(found)
    return found


def unallocated(folder: Path, workload: str, placement: str, seed: int) -> dict[int, float]:
    """Per cent of the GPUs, by the per cent that have arrived of what they could serve; see :data:`READ_AT`.

    Raises:
        AssertionError: a device has given more than it has.
    """
    agents = traces.nodes(folder)
    counted = traces.requests(folder, workload)
    scheduler = IncrementalScheduler(Snapshot(resource_group="trace", agents=agents, workload=tuple(counted.items())))
    capacity = float(scheduler.capacity[_GPU])
    policy, rng, now = Policy(placement=placement), random.Random(seed), traces.EPOCH
    arrived, allocated = 0.0, 0.0
    given: dict[tuple[str, str, str], float] = {}
    shares: dict[int, float] = {}
    for number, slots in enumerate(arrivals(list(counted), list(counted.values()), capacity, seed)):
        for share in READ_AT[len(shares) :]:
            if arrived >= capacity * share / 100:
                shares[share] = 100 * (1 - allocated / capacity)
        arrived += float(slots[_GPU])
        who = traces.session(number, slots)
        scheduler.enqueue(who)
        for placed in decide(scheduler, policy, now=now, rng=rng).placements:
            for kernel in placed.kernels:
                for slot, devices in kernel.devices.slots.items():
                    for device, quantity in devices.items():
                        key = kernel.agent_id, slot, device
                        given[key] = given.get(key, 0.0) + float(quantity)
                        allocated += float(quantity) if slot == _GPU else 0.0
        scheduler.withdraw(who.session_id)
    shares.setdefault(READ_AT[-1], 100 * (1 - allocated / capacity))
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
    return shares


def panel(workload: str, curves: Sequence[dict[int, float]], reference: traces.Published) -> dict[str, object]:
    """Describes a workload over the arrivals, ours and FGD's, each with its deviation over the seeds."""
    ours = [[curve[share] for curve in curves] for share in READ_AT]
    theirs = [reference[workload, "06-FGD", share] for share in READ_AT]
    both = {
        "this, least-fragmentation": ([statistics.fmean(v) for v in ours], [statistics.stdev(v) for v in ours]),
        "FGD as published": ([mean for mean, _ in theirs], [sd for _, sd in theirs]),
    }
    lines = [{"name": name, "xs": READ_AT, "ys": ys, "spread": spread} for name, (ys, spread) in both.items()]
    axes = {"x": "arrived, % of the GPUs", "y": "unallocated GPUs, %"}
    return {"kind": "lines", "title": workload, "lines": lines, **axes}


@benchmark("fragmentation", "unallocated GPUs on the FGD trace, arrival only; --data names its folder", needs="data")
def fragmentation() -> Sequence[Figure]:
    folder = Path(option("data"))
    reference = traces.published(folder)
    figures, panels = [], []
    for workload in WORKLOADS:
        curves = []
        for seed in SEEDS:
            curves.append(unallocated(folder, workload, "least-fragmentation", seed))
            sys.stderr.write(f"  {workload} seed {seed}: {curves[-1][100]:.3f} %\n")
        panels.append(panel(workload, curves, reference))
        values = [curve[100] for curve in curves]
        mean, published = statistics.fmean(values), reference[workload, "06-FGD", 100]
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
    draw("fragmentation.png", panels)
    return figures
