"""Measures the cost of device requests: of one allocation, and of the planner with three alternatives, each
against the same without them in the same run."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from decimal import Decimal

from ai.backend.common.devices import AllocMapSpec, VariantProperty
from ai.backend.common.ids import DeviceName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.structs import replace
from ai.backend.core.allocation.node import NodeAllocator, PluginDevices
from ai.backend.core.allocation.requests.compiled import RequestCompiler
from ai.backend.core.scheduling.decide import decide
from ai.backend.core.scheduling.index.agent_state import NodeClassCache
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import Snapshot
from ai.backend.infra.process.memory import collector_paused
from bench import loads
from bench.figures import Figure, benchmark, spread

MODELS = {"T4": (16, "7.5"), "A100": (80, "8.0"), "H100": (80, "9.0")}
"""Model -> (GiB of memory, compute capability)."""
ALTERNATIVES = ('model == "H100"', "memory >= 40g && compute_capability >= 8.0", "compute_capability >= 7.0")
EXPRESSIONS = {
    "a range": "memory >= 40g && compute_capability >= 8.0",
    "a list and an exclusion": 'model in ["A100", "H100"] && id != "0"',
    "same(numa_node)": "same(numa_node)",
}
_ROUNDS = 9
_CALLS = 2_000


def with_models(plugin: PluginDevices, model: str) -> PluginDevices:
    """Returns the accelerators of one model; other plugins as they are."""
    if plugin.name != "cuda":
        return plugin
    memory, capability = MODELS[model]
    stated = VariantProperty(namespace="nvidia", feature="compute_capability", value=capability)
    devices = tuple(
        replace(device, model_name=model, memory_size=memory * 2**30, variant_properties=(stated,))
        for device in plugin.devices
    )
    return replace(plugin, devices=devices)


def mixed(snapshot: Snapshot) -> Snapshot:
    """Returns the snapshot with a model for each agent in turn."""
    plugins = snapshot.agents[0].plugins
    kinds = [tuple(with_models(plugin, model) for plugin in plugins) for model in MODELS]
    agents = tuple(replace(view, plugins=kinds[number % len(kinds)]) for number, view in enumerate(snapshot.agents))
    return replace(snapshot, agents=agents)


def microseconds(allocate: Callable[[], object]) -> float:
    started = time.process_time()
    for _ in range(_CALLS):
        allocate()
    return (time.process_time() - started) / _CALLS * 1e6


def allocation(name: str, text: str) -> Figure:
    """Measures prepare, allocate and free on a node of 8 devices, with the expression and without it, in turn."""
    gpus = with_models(loads.machines(1, 8)[0].plugins[-1], "H100")
    plugin = PluginDevices(name=DeviceName("cuda"), devices=gpus.devices, alloc_map=AllocMapSpec(kind="discrete"))
    allocator = NodeAllocator.from_devices([plugin])
    request, device_request = ResourceSlot({"cuda.device": Decimal(2)}), RequestCompiler().compile(text)
    plain_prepared, prepared = allocator.prepare(request), allocator.prepare(request, (), device_request)
    plain, asked = [], []
    for _ in range(_ROUNDS):
        plain.append(microseconds(lambda: allocator.free(allocator.take(plain_prepared))))
        asked.append(microseconds(lambda: allocator.free(allocator.take(prepared))))
    value, reference = statistics.median(asked), statistics.median(plain)
    sys.stderr.write(f"  {name}: {value:.1f} us, {reference:.1f} us without\n")
    return Figure(
        name=f"allocate and free 2 of 8 devices with {name}",
        value=value,
        unit="us of CPU",
        target="<= 2 times the same without an expression",
        holds=value <= 2 * reference,
        reference=reference,
        reference_is="the same request without an expression, in the same run",
        detail=spread(asked),
    )


def decisions(snapshot: Snapshot, placement: str) -> float:
    """Returns decisions in a second of CPU."""
    node_classes = NodeClassCache()
    started = time.process_time()
    with collector_paused():
        plan = decide(
            snapshot, Policy(placement=placement), now=loads.NOW, rng=random.Random(1), node_classes=node_classes
        )
    taken = time.process_time() - started
    assert len(plan.placements) + sum(len(wait.session_ids) for wait in plan.waits) == len(snapshot.pending)
    return len(snapshot.pending) / taken


def planner(placement: str) -> Figure:
    snapshot = mixed(loads.snapshot(agents=5_000, pending=10_000, accelerators=8))
    pending = tuple(
        replace(session, device_requests=ALTERNATIVES) if session.total["cuda.device"] else session
        for session in snapshot.pending
    )
    asking = replace(snapshot, pending=pending)
    rates, plain_rates = [], []
    for _ in range(2):
        plain_rates.append(decisions(snapshot, placement))
        rates.append(decisions(asking, placement))
    value, reference = statistics.median(rates), statistics.median(plain_rates)
    sys.stderr.write(f"  {placement}: {value:,.0f}/s with alternatives, {reference:,.0f}/s without\n")
    return Figure(
        name=f"5,000 agents of three models, 10,000 pending with three alternatives, {placement}",
        value=value,
        unit="decisions/s of CPU",
        target=">= 0.5 of the rate without device requests",
        holds=value >= 0.5 * reference,
        reference=reference,
        reference_is="the same sessions without device requests, in the same run",
        detail=spread(rates),
    )


@benchmark("device-requests", "allocation with an expression, and the planner with three alternatives in order")
def device_requests() -> Sequence[Figure]:
    figures = [allocation(name, text) for name, text in EXPRESSIONS.items()]
    figures += [planner(placement) for placement in ("dispersed", "concentrated", "least-fragmentation")]
    return figures
