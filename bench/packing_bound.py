"""The least share of the GPUs that any placement leaves unallocated, with all requests known: a bound, found offline.

Relaxed: cores, memory, nodes and models are ignored, and patterns may be used in fractions. What remains is cutting
stock: fill each device with a pattern of parts, using each request at most once. Every vector of prices bounds it from
above by Lagrangian duality; the scheduler's own pricing finds good ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import gcd

from ai.backend.core.scheduling.index.part_values import price_sizes

_STEPS = 6_000


def least_unallocated(amounts: Iterable[float], devices: int) -> float:
    """Returns a lower bound in per cent. ``amounts``: of requests: parts of a device, or several whole ones."""
    counts: Counter[int] = Counter()
    for amount in amounts:
        milli = round(amount * 1000)
        if 0 < milli < 1000:
            counts[milli] += 1
        else:
            counts[1000] += milli // 1000
    unit = gcd(1000, *counts)
    sizes = sorted(size // unit for size in counts if counts[size])
    value, _ = price_sizes(sizes, [counts[size * unit] / devices for size in sizes], 1000 // unit, _STEPS)
    return 100 * (1 - value * unit / 1000)
