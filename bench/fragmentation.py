"""Which share of the GPUs stays unallocated when requests only arrive, on the trace that was published with FGD.

Every workload in the folder is measured, with the models that its requests name (``gpu_spec``); those of the published
shares of such requests that are not there are drawn, see :func:`bench.traces.specified`.

For each seed requests are drawn with replacement until they ask for 130 % of the GPUs, and shuffled. They arrive one at
a time and are placed for good or refused. What is not allocated when 100 % have arrived is the figure; how it becomes
so is drawn into docs/fragmentation.png.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from ai.backend.common.slots import ResourceSlot
from ai.backend.core.scheduling.decide import IncrementalScheduler, decide
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import Snapshot
from bench import traces
from bench.figures import Figure, benchmark, option
from bench.packing_bound import least_unallocated
from bench.plots import draw

SEEDS = range(42, 52)
READ_AT = (90, 95, 100, 110, 120, 130)
SPECIFIED = {"gpuspec10": 10, "gpuspec20": 20, "gpuspec25": 25, "gpuspec33": 33}
"""Published workloads in which so many per cent of the GPU requests name models."""
TARGETS = {"default": 3.9}
"""Unallocated GPUs in per cent at 100 % arrived, where more than FGD is to be reached."""
_GPU = "cuda.shares"


def arrivals(
    requests: Sequence[traces.Request], weights: Sequence[int], capacity: float, seed: int
) -> list[traces.Request]:
    rng = random.Random(seed)
    bounds = list(accumulate(weights))
    workload_requests: list[traces.Request] = []
    requested = 0.0
    while requested < 1.3 * capacity:
        (drawn,) = rng.choices(requests, cum_weights=bounds)
        workload_requests.append(drawn)
        requested += float(drawn.slots[_GPU])
    rng.shuffle(workload_requests)
    return workload_requests


def load(folder: Path, workload: str) -> tuple[Counter[traces.Request], bool]:
    """Returns the requests of a workload, and whether they are drawn because the folder does not have it."""
    if workload in traces.workloads(folder):
        return traces.requests(folder, workload), False
    return traces.specified(folder, SPECIFIED[workload], seed=7), True


def bound(counted: Counter[traces.Request], capacity: float, seed: int) -> float:
    """Returns the least per cent that any placement leaves of what has arrived at 100 %, all requests known."""
    amounts: list[float] = []
    for request in arrivals(list(counted), list(counted.values()), capacity, seed):
        if sum(amounts) >= capacity:
            break
        amounts.append(float(request.slots[_GPU]))
    return least_unallocated(amounts, round(capacity))


def unallocated(folder: Path, counted: Counter[traces.Request], placement: str, seed: int) -> dict[int, float]:
    """Per cent of the GPUs, by the per cent that have arrived of what they could serve; see :data:`READ_AT`.

    Raises:
        AssertionError: a device has given more than it has.
    """
    agents = traces.nodes(folder)
    workload: Counter[ResourceSlot] = Counter()
    for request, count in counted.items():
        workload[request.slots] += count
    typical_requests = [(request.device_requests, request.slots, count) for request, count in counted.items()]
    scheduler = IncrementalScheduler(
        Snapshot(
            resource_group="trace",
            agents=agents,
            workload=tuple(workload.items()),
            device_workload=tuple(entry for entry in typical_requests if entry[0]),
        )
    )
    capacity = float(scheduler.capacity[_GPU])
    policy, rng, now = Policy(placement=placement), random.Random(seed), traces.EPOCH
    arrived, allocated = 0.0, 0.0
    given: dict[tuple[str, str, str], float] = {}
    shares: dict[int, float] = {}
    for number, request in enumerate(arrivals(list(counted), list(counted.values()), capacity, seed)):
        for share in READ_AT[len(shares) :]:
            if arrived >= capacity * share / 100:
                shares[share] = 100 * (1 - allocated / capacity)
        arrived += float(request.slots[_GPU])
        who = traces.session(number, request)
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
    both = {"this, least-fragmentation": ([statistics.fmean(v) for v in ours], [statistics.stdev(v) for v in ours])}
    if (workload, "06-FGD", READ_AT[0]) in reference:
        theirs = [reference[workload, "06-FGD", share] for share in READ_AT]
        both["FGD as published"] = [mean for mean, _ in theirs], [sd for _, sd in theirs]
    lines = [{"name": name, "xs": READ_AT, "ys": ys, "spread": spread} for name, (ys, spread) in both.items()]
    axes = {"x": "arrived, % of the GPUs", "y": "unallocated GPUs, %"}
    return {"kind": "lines", "title": workload, "lines": lines, **axes}


def measure(folder: Path, workload: str, reference: traces.Published) -> tuple[Figure, dict[str, object]]:
    counted, is_drawn = load(folder, workload)
    curves = []
    for seed in SEEDS:
        curves.append(unallocated(folder, counted, "least-fragmentation", seed))
        sys.stderr.write(f"  {workload} seed {seed}: {curves[-1][100]:.3f} %\n")
    values = [curve[100] for curve in curves]
    mean, published = statistics.fmean(values), reference.get((workload, "06-FGD", 100))
    limit = min(TARGETS.get(workload, 100.0), published[0] if published else 100.0)
    capacity = sum(
        float(slot.amount)
        for agent in traces.nodes(folder)
        for plugin in agent.plugins
        for device in plugin.devices
        for slot in device.slots
        if slot.slot_name == _GPU
    )
    detail = {"sd": statistics.stdev(values), "min": min(values), "max": max(values)}
    if not any(request.device_requests for request in counted):
        detail["bound of any placement, offline"] = statistics.fmean(bound(counted, capacity, seed) for seed in SEEDS)
    figure = Figure(
        name=f"unallocated GPUs, {workload}" + (" (drawn)" if is_drawn else ""),
        value=mean,
        unit="%",
        target=f"< {limit:.2f}" + ("" if workload in TARGETS else " (FGD)") if limit < 100 else "none: not published",
        holds=mean < limit,
        reference=published[0] if published else None,
        reference_is="FGD as published, mean of ten seeds" if published else "",
        detail=detail | ({"their sd": published[1]} if published else {}),
    )
    return figure, panel(figure.name.removeprefix("unallocated GPUs, "), curves, reference)


@benchmark("fragmentation", "unallocated GPUs on the FGD trace, arrival only; --data names its folder", needs="data")
def fragmentation() -> Sequence[Figure]:
    folder = Path(option("data"))
    reference = traces.published(folder)
    names = dict.fromkeys([*traces.workloads(folder), *SPECIFIED])
    measured = [measure(folder, workload, reference) for workload in names]
    draw("fragmentation.png", [drawn for _, drawn in measured])
    return [figure for figure, _ in measured]
