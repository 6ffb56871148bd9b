"""Measures arithmetic on resource slots, ours and the published peer's in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial

from ai.backend.common.slots import ResourceSlot
from bench.allocation import in_turn
from bench.figures import Figure, benchmark, spread
from bench.peer import peer

FASTER = 2.0
LEFT = {"cpu": "4", "mem": "8589934592", "cuda.device": "2", "cuda.shares": "1.25"}
RIGHT = {"cpu": "1", "mem": "1073741824", "cuda.device": "1", "cuda.shares": "0.25"}
#: ``equal`` compares unequal values, ``same`` equal ones.
OPERATIONS: dict[str, Callable[[ResourceSlot, ResourceSlot], object]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "equal": lambda a, b: a == b,
    "same": lambda a, b: a == b,
    "fits": lambda a, b: b <= a,
}


@benchmark("slots", "add, subtract and compare ResourceSlots of 2 and 4 slots against the published peer")
def slots() -> Sequence[Figure]:
    figures = []
    with peer() as theirs:
        for keys in (2, 4):
            left_operand = dict(list(LEFT.items())[:keys])
            for name, operation in OPERATIONS.items():
                right = dict(left_operand) if name == "same" else dict(list(RIGHT.items())[:keys])
                a, b = ResourceSlot.parse(left_operand), ResourceSlot.parse(right)
                case = {"case": "slots", "operation": name, "left": left_operand, "right": right}
                ours, others = in_turn(partial(operation, a, b), theirs, case, 10_000, 10_000)
                value, reference = 1e6 / statistics.median(ours), 1e6 / statistics.median(others)
                figures.append(
                    Figure(
                        name=f"slots-{keys}-{name}",
                        value=value,
                        unit="operations/s",
                        reference=reference,
                        reference_is="the published peer in the same run",
                        target=f">= {FASTER:g} times the peer",
                        holds=value >= FASTER * reference,
                        detail=spread([1e6 / us for us in ours]),
                    )
                )
    return figures
