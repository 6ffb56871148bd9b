"""How many placements the scheduler decides in a second, and what it costs to decide that nothing can be placed.

The load is drawn by the generator of ``bench/loads.py``, with quotas and NUMA nodes as in production. A decision is one
session given its agents and devices, or refused with a reason. What is timed is ``decide`` whole, from the snapshot to
the plan; every plan is checked afterwards, outside of the timed part.
"""

from __future__ import annotations

import gc
import json
import random
import resource
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal

from ai.backend.common.ids import SlotName
from ai.backend.core.scheduling.decide import IncrementalScheduler, decide
from ai.backend.core.scheduling.index.agent_state import NodeClassCache
from ai.backend.core.scheduling.plan import Plan, SkipReason
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import Snapshot
from ai.backend.infra.process.memory import collector_paused
from bench import loads
from bench.figures import Figure, benchmark
from bench.peer_scheduler import peer_seconds
from bench.plots import draw_rates

_NODE_CLASSES = NodeClassCache()
"""Kept over all decisions, as the scheduling loop keeps its own."""


def check(snapshot: Snapshot, plan: Plan) -> None:
    """Every session appears once, whole, and no device gives more than it has.

    Raises:
        AssertionError: not so.
    """
    requests = {k.kernel_id: k.slots for s in snapshot.pending for k in s.kernels}
    decided = [p.session_id for p in plan.placements] + [s for w in plan.waits for s in w.session_ids]
    assert len(decided) == len(set(decided)) == len(snapshot.pending), "every session once"
    amounts = loads.amounts(snapshot.agents)
    allocated: defaultdict[tuple[str, str, str], Decimal] = defaultdict(Decimal)
    for placement in plan.placements:
        for kernel in placement.kernels:
            for slot, quantity in requests[kernel.kernel_id].nonzero().items():
                assert kernel.devices.total(SlotName(slot)) == quantity, "whole"
            for name, devices in kernel.devices.slots.items():
                for device, part in devices.items():
                    allocated[kernel.agent_id, name, device] += part
    assert all(quantity <= amounts[key] for key, quantity in allocated.items()), "no device over its amount"


def timed(snapshot: Snapshot, policy: Policy) -> tuple[Plan, float, float]:
    """The plan, and the seconds that it took: by the clock and of CPU."""
    gc.collect()
    clock, cpu = time.perf_counter(), time.process_time()
    with collector_paused():
        plan = decide(snapshot, policy, now=loads.NOW, rng=random.Random(1), node_classes=_NODE_CLASSES)
    return plan, time.perf_counter() - clock, time.process_time() - cpu


def speed() -> float:
    """Million turns of a plain loop in a second of CPU: how fast the machine is just now."""
    start, total = time.process_time(), 0
    for i in range(2_000_000):
        total += i * i
    return 2.0 / (time.process_time() - start)


def rate(
    name: str, snapshot: Snapshot, policy: Policy, target: int, reference: tuple[float, str] | None = None
) -> Figure:
    plan, clock, cpu = timed(snapshot, policy)
    check(snapshot, plan)
    decided = len(snapshot.pending)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    sys.stderr.write(
        f"  {name}, {policy.order}, {policy.placement}: {decided / cpu:,.0f}/s of CPU, "
        f"{decided / clock:,.0f}/s by the clock, {len(plan.placements):,} placed\n"
    )
    return Figure(
        name=f"{name}, {policy.order}, {policy.placement}",
        value=decided / cpu,
        unit="decisions/s of CPU",
        target=f">= {target:,}" + (", <= 4 GiB" if len(snapshot.agents) > 50_000 else ""),
        holds=decided / cpu >= target and memory <= 4,
        reference=reference[0] if reference else None,
        reference_is=reference[1] if reference else "",
        detail={
            "decisions/s by the clock": decided / clock,
            "placed": len(plan.placements),
            "placed/s of CPU": len(plan.placements) / cpu,
            "shapes": len({tuple(k.slots for k in s.kernels) for s in snapshot.pending}),
            "peak memory, GiB": memory,
            "plain loop, M turns/s": speed(),
        },
    )


@benchmark(
    "scheduler", "placement decisions: 5,000 and 100,000 agents, plain, with devices, fair share, and idle passes"
)
def scheduler() -> Sequence[Figure]:
    kube = "kube-scheduler's floor in its CI at that size, with its API server"
    figures = []
    plain = loads.snapshot(agents=5_000, pending=50_000, accelerators=0)
    devices = loads.snapshot(agents=5_000, pending=50_000, accelerators=8)
    for placement in ("dispersed", "concentrated"):
        policy = Policy(placement=placement)
        figures.append(rate("5,000 agents, 50,000 pending", plain, policy, 20_000, (810, kube)))
        figures.append(rate("the same with 8 accelerators each", devices, policy, 10_000, (180, kube)))
    figures.append(rate("the same with 8 accelerators each", devices, Policy(placement="least-fragmentation"), 10_000))
    figures.append(idle())
    figures.append(queues())
    del plain, devices
    gc.collect()
    large = loads.snapshot(agents=100_000, pending=50_000, accelerators=8)
    figures.append(rate("100,000 agents, 50,000 pending", large, Policy(), 5_000))
    draw_rates([json.loads(figure.as_json()) for figure in figures])
    return figures


def idle() -> Figure:
    """Measures passes of an incremental scheduler in which nothing can be placed and one agent has changed."""
    snapshot = loads.full(agents=5_000, pending=50_000)
    scheduler = IncrementalScheduler(snapshot)
    rng = random.Random(1)
    first = decide(scheduler, Policy(), now=loads.NOW, rng=rng)
    assert not first.placements
    taken = []
    for number in range(9):
        agent = snapshot.agents[number]
        scheduler.release(agent.agent_id, agent.held[0].kernel_id)
        gc.collect()
        start = time.process_time()
        with collector_paused():
            plan = decide(scheduler, Policy(), now=loads.NOW, rng=rng)
        taken.append(time.process_time() - start)
        assert not plan.placements
        assert sum(len(w.session_ids) for w in plan.waits) == 50_000
        assert all(w.reason in (SkipReason.INSUFFICIENT_RESOURCE, SkipReason.BEHIND_ANOTHER) for w in plan.waits)
    taken.sort()
    return Figure(
        name="a pass with nothing to do, 5,000 agents, 50,000 pending",
        value=taken[len(taken) // 2] * 1e3,
        unit="ms of CPU",
        target="<= 50",
        holds=taken[len(taken) // 2] <= 0.05,
        detail={"least, ms": taken[0] * 1e3, "most, ms": taken[-1] * 1e3},
    )


@benchmark("scheduler-peer", "1,000 pending on 1,000 agents, FIFO, dispersed, against the published peer's scheduler")
def scheduler_peer() -> Sequence[Figure]:
    snapshot = loads.snapshot(agents=1_000, pending=1_000, accelerators=8)
    totals = [{s: str(q) for s, q in loads.totals(view).items()} for view in snapshot.agents]
    theirs, placed = peer_seconds(snapshot, totals)
    taken = []
    for _ in range(5):
        plan, _, cpu = timed(snapshot, Policy())
        check(snapshot, plan)
        assert len(plan.placements) == placed, "both place as many"
        taken.append(cpu)
    ours = statistics.median(taken)
    return [
        Figure(
            name="1,000 pending on 1,000 agents with 8 accelerators, fifo, dispersed",
            value=theirs / ours,
            unit="times the peer, CPU",
            target=">= 200",
            holds=theirs / ours >= 200,
            detail={"ours, s": ours, "theirs, s": theirs, "placed": placed, "best of ours, s": min(taken)},
        )
    ]


def queues() -> Figure:
    """50,000 sessions of 1,000 projects under fair share: rounds of decisions until all have run, in simulated time."""
    clock, cpu = time.perf_counter(), time.process_time()
    rounds, placed = loads.run_fair_share(agents=1_000, sessions=50_000, projects=1_000)
    clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
    assert placed == 50_000
    return Figure(
        name="50,000 sessions over 1,000 projects, fair share, all placed",
        value=cpu,
        unit="s of CPU",
        target="< 60",
        holds=cpu < 60,
        detail={"s by the clock": clock, "passes": rounds},
    )
