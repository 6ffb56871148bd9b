"""Runs in the peer's environment: reads one case a line, answers with the CPU seconds that one call took.

The cases are those of bench/allocation.py and bench/slots.py; only the peer's published names are used.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

ALLOC_MAP = importlib.import_module("ai.backend.agent.alloc_map")
TYPES = importlib.import_module("ai.backend.common.types")
KINDS = {"discrete": ALLOC_MAP.DiscretePropertyAllocMap, "fractional": ALLOC_MAP.FractionAllocMap}


def allocation(kind: str, devices: int, strategy: str, taken: str, request: str) -> Callable[[], object]:
    slots = {str(i): ALLOC_MAP.DeviceSlotInfo(TYPES.SlotTypes.COUNT, "x", Decimal(1)) for i in range(devices)}
    alloc_map = KINDS[kind](device_slots=slots, allocation_strategy=ALLOC_MAP.AllocationStrategy[strategy.upper()])
    if Decimal(taken):
        alloc_map.allocate({"x": Decimal(taken)})
    amounts = {"x": Decimal(request)}
    return lambda: alloc_map.free(alloc_map.allocate(amounts))


def slots(operation: str, left_operand: dict[str, str], right: dict[str, str]) -> Callable[[], object]:
    a = TYPES.ResourceSlot({name: Decimal(text) for name, text in left_operand.items()})
    b = TYPES.ResourceSlot({name: Decimal(text) for name, text in right.items()})
    calls = {"add": lambda: a + b, "subtract": lambda: a - b, "equal": lambda: a == b, "fits": lambda: b <= a}
    return calls["equal" if operation == "same" else operation]


CASES: dict[str, Callable[..., Callable[[], object]]] = {"allocation": allocation, "slots": slots}


def main() -> None:
    ready: dict[str, Callable[[], object]] = {}
    for line in sys.stdin:
        case: dict[str, Any] = json.loads(line)
        number = case.pop("number")
        key = json.dumps(case)
        if key not in ready:
            ready[key] = CASES[case.pop("case")](**case)
        run = ready[key]
        started = time.process_time()
        for _ in range(number):
            run()
        sys.stdout.write(f"{(time.process_time() - started) / number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
