"""Measures the allocation of devices: allocate and free of one request, ours and the published peer's in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from ai.backend.common.devices import AllocationStrategy, AllocMapSpec, ComputeDevice, DeviceSlot
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.states import SlotType
from ai.backend.core.allocation.stock_maps import build_alloc_map
from bench.figures import Figure, benchmark, spread
from bench.peer import Measure, peer
from bench.plots import draw

PLOT = "allocation-cost.png"
SLOT = SlotName("x")
REQUESTS = ("1", "2", "4")
FASTER = {8: 1.0, 64: 5.0, 1024: 20.0}
FRACTIONAL_FASTER = 200.0
GROWTH_LIMIT = 2.0
ROUNDS = 9


def _ours(case: Mapping[str, Any]) -> Callable[[], object]:
    quantum = Decimal("0.01") if case["kind"] == "fractional" else Decimal(1)
    slot = DeviceSlot(slot_name=SLOT, slot_type=SlotType.COUNT, amount=Decimal(1), quantum=quantum)
    devices = [
        ComputeDevice(device_name=DeviceName("x"), device_id=DeviceId(str(i)), hw_location="", slots=(slot,))
        for i in range(case["devices"])
    ]
    spec = AllocMapSpec(kind=case["kind"], strategy=AllocationStrategy(case["strategy"]))
    alloc_map = build_alloc_map(spec, devices)
    if taken := Decimal(case["taken"]):
        alloc_map.allocate({SLOT: taken})
    request = {SLOT: Decimal(case["request"])}
    return lambda: alloc_map.free(alloc_map.allocate(request))


def _case(kind: str, devices: int, strategy: str, request: str) -> dict[str, Any]:
    """A quarter of the devices is taken before."""
    taken = str(devices // 4) if kind == "discrete" else "0"
    return {"case": "allocation", "kind": kind, "devices": devices, "strategy": strategy} | {
        "taken": taken,
        "request": request,
    }


def in_turn(
    ours: Callable[[], object], theirs: Measure, case: Mapping[str, Any], number: int, peer_number: int
) -> tuple[list[float], list[float]]:
    """Microseconds of CPU time of one call, a sample a round, the two measured in turn."""
    mine, others = [], []
    theirs(case, 1)
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(number):
            ours()
        mine.append((time.process_time() - started) / number * 1e6)
        others.append(theirs(case, peer_number) * 1e6)
    return mine, others


def _discrete(theirs: Measure, devices: int, strategy: str) -> tuple[list[float], list[float], dict[str, float]]:
    """Microseconds for the mean of the requests, by round; and by request the ratio of the peer's to ours."""
    rounds, peer_rounds, detail = [0.0] * ROUNDS, [0.0] * ROUNDS, {}
    for request in REQUESTS:
        case = _case("discrete", devices, strategy, request)
        ours, others = in_turn(_ours(case), theirs, case, 2000, max(20, 8000 // devices))
        rounds = [a + b / len(REQUESTS) for a, b in zip(rounds, ours, strict=True)]
        peer_rounds = [a + b / len(REQUESTS) for a, b in zip(peer_rounds, others, strict=True)]
        detail[f"faster_at_{request}"] = statistics.median(others) / statistics.median(ours)
    return rounds, peer_rounds, detail


@benchmark("allocation", "allocate + free on 8, 64 and 1,024 devices against the published peer")
def allocation() -> Sequence[Figure]:
    figures = []
    with peer() as theirs:
        for devices, faster in FASTER.items():
            for strategy in ("evenly", "fill"):
                rounds, peer_rounds, detail = _discrete(theirs, devices, strategy)
                value, reference = statistics.median(rounds), statistics.median(peer_rounds)
                figures.append(
                    Figure(
                        name=f"allocate-{devices}-{strategy}",
                        value=value,
                        unit="us",
                        reference=reference,
                        reference_is="the published peer, the same requests in the same run",
                        target=f"peer / value >= {faster:g}",
                        holds=reference >= faster * value,
                        detail=spread(rounds) | detail,
                    )
                )
        case = _case("fractional", 64, "evenly", "8")
        ours, others = in_turn(_ours(case), theirs, case, 1000, 1)
    value, reference = statistics.median(ours), statistics.median(others)
    figures.append(
        Figure(
            name="allocate-64-fractional-evenly",
            value=value,
            unit="us",
            reference=reference,
            reference_is="the published peer, the same request (8 devices of 64) in the same run",
            target=f"peer / value >= {FRACTIONAL_FASTER:g}",
            holds=reference >= FRACTIONAL_FASTER * value,
            detail=spread(ours),
        )
    )
    return figures


def panel(sizes: Sequence[int], lines: Mapping[str, Sequence[float]]) -> dict[str, object]:
    drawn = [{"name": f"{name}: {ys[-1]:,.0f} us at the end", "xs": sizes, "ys": ys} for name, ys in lines.items()]
    title = "allocate + free of 1, 2, 4 devices (mean)"
    return {"kind": "lines", "title": title, "x": "devices", "y": "us", "log": True, "lines": drawn}


@benchmark("allocation-plot", f"cost of a request by the number of devices; writes docs/{PLOT}")
def allocation_plot() -> Sequence[Figure]:
    sizes = (8, 16, 32, 64, 128, 256, 512, 1024)
    lines: dict[str, list[float]] = {}
    with peer() as theirs:
        for strategy in ("evenly", "fill"):
            pairs = [_discrete(theirs, devices, strategy)[:2] for devices in sizes]
            lines[f"this, {strategy}"] = [statistics.median(ours) for ours, _ in pairs]
            lines[f"peer, {strategy}"] = [statistics.median(others) for _, others in pairs]
    draw(PLOT, [panel(sizes, lines)])
    value = max(values[-1] / values[0] for name, values in lines.items() if name.startswith("this"))
    return [
        Figure(
            name="allocate-growth",
            value=value,
            unit="cost on 1,024 devices over cost on 8",
            reference=min(values[-1] / values[0] for name, values in lines.items() if "peer" in name),
            reference_is="the published peer",
            target=f"<= {GROWTH_LIMIT:g}",
            holds=value <= GROWTH_LIMIT,
        )
    ]
