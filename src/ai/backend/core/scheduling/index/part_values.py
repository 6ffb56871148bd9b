"""Computes the worth of free parts of shared devices: the use that typical requests can still make of them.

A part that fits may still be badly put: 0.47 beside 0.48 fills a device for ever, beside 0.81 it cannot be. What each
size costs the others is its price in the relaxed cutting-stock problem: fill devices with patterns of parts, where no
more of each size comes than typically does (Gilmore and Gomory). A free part is then worth the best pattern that it can
still hold, each size at its worth less its price; docs/decisions/0362-parts-of-devices-have-prices.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import NamedTuple

_STEPS = 400
_MAX_CELLS = 128
_MAX_SIZES = 48
_MAX_CACHED = 64
_PRECISION = 512
"""Frequencies are rounded to fractions of this size, so that small changes do not change the prices."""

Demand = tuple[tuple[int, int], ...]
"""(size in cells, number for each device in fractions of :data:`_PRECISION`), in ascending order."""


class PartValues(NamedTuple):
    """Holds how much each size of a device's free part is worth, in devices.

    ``worth`` is by the number of free cells of ``unit`` quanta.
    """

    unit: int
    worth: tuple[float, ...]

    def lost_worth(self, free_quanta: int, taken_quanta: int) -> float:
        """Returns the worth, in devices, that a device with ``free_quanta`` loses if ``taken_quanta`` are taken."""
        return self.worth[free_quanta // self.unit] - self.worth[(free_quanta - taken_quanta) // self.unit]


def demand_of(sizes: Mapping[int, float], largest: int) -> tuple[int, Demand]:
    """Returns the size of a cell, in quanta of the slot, and the parts in cells that requests usually take.

    Parts of a device are measured in cells.

    ``sizes`` maps a request's quanta to the number of such requests for each device.

    A request of more than one device counts as the equal shares in which devices give it.
    """
    count_of_share: dict[int, float] = {}
    for size_quanta, count in sizes.items():
        device_count = -(-size_quanta // largest)
        share = -(-size_quanta // device_count)
        count_of_share[share] = count_of_share.get(share, 0.0) + count * device_count
    frequent_sizes = sorted(count_of_share, key=lambda size: (-count_of_share[size] * size, size))[:_MAX_SIZES]
    unit_quanta = max(gcd(largest, *frequent_sizes), -(-largest // _MAX_CELLS))
    count_of_cells: dict[int, int] = {}
    for size_quanta in frequent_sizes:
        cell_count = min(-(-size_quanta // unit_quanta), largest // unit_quanta)
        count_of_cells[cell_count] = count_of_cells.get(cell_count, 0) + max(
            1, round(count_of_share[size_quanta] * _PRECISION)
        )
    return unit_quanta, tuple(sorted(count_of_cells.items()))


def part_values(unit_quanta: int, largest: int, demand: Demand) -> PartValues:
    """Computes how much each free part of a device is worth, from prices of the typical sizes.

    Equal arguments give an equal result.
    """
    cell_count = largest // unit_quanta
    sizes = [size for size, _ in demand]
    _, prices = price_sizes(sizes, [count / _PRECISION for _, count in demand], cell_count, _STEPS)
    worth = _worth(sizes, prices, cell_count)[0]
    return PartValues(unit_quanta, tuple(cell_worth / cell_count for cell_worth in worth))


def price_sizes(
    sizes: Sequence[int], supply: Sequence[float], cell_count: int, steps: int
) -> tuple[float, Sequence[float]]:
    """Computes a price for each size of requested parts. Sizes are in cells, ascending.

    ``supply``: how many of each size come for a device.

    ``cell_count``: of a device.

    Returns the value of the dual problem and its prices: no placement fills more cells of a device on average than the
    value, whatever the prices. By subgradient steps with Polyak's stride. O(steps * cells * sizes).
    """
    prices: list[float] = [0.0] * len(sizes)
    best_value, best_prices, ambition_part = float("inf"), prices, 0.02
    for step in range(steps):
        dual_value, used_counts = _best_pattern(sizes, prices, cell_count)
        dual_value += sum(supply_count * price for supply_count, price in zip(supply, prices, strict=True))
        if dual_value < best_value:
            best_value, best_prices = dual_value, prices
        if step % (steps // 20) == steps // 20 - 1:
            ambition_part *= 0.85
        gradient = [supply_count - used_count for supply_count, used_count in zip(supply, used_counts, strict=True)]
        step_length = (dual_value - best_value * (1 - ambition_part)) / (
            sum(slope_part * slope_part for slope_part in gradient) or 1.0
        )
        prices = [
            max(0.0, price - step_length * slope_part) for price, slope_part in zip(prices, gradient, strict=True)
        ]
    return best_value, best_prices


class PartValueCache:
    """Caches the :class:`PartValues` of demands, because a mix of requests that hardly changes is priced once."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, int, Demand], PartValues] = {}

    def get(self, sizes: Mapping[int, float], largest: int) -> PartValues:
        """Returns the values for requests of these sizes; see :func:`demand_of`."""
        unit_quanta, demand = demand_of(sizes, largest)
        cache_key = unit_quanta, largest, demand
        values = self._values.get(cache_key)
        if values is None:
            if len(self._values) >= _MAX_CACHED:
                self._values.clear()
            values = self._values[cache_key] = part_values(unit_quanta, largest, demand)
        return values


def _worth(sizes: Sequence[int], prices: Sequence[float], device_cells: int) -> tuple[list[float], list[int]]:
    """Returns the worth of each number of free cells, and the last size in the best pattern of each number.

    A size is given by its index.

    -1 means no size.
    """
    gains_of_sizes = [(index, size, size - prices[index]) for index, size in enumerate(sizes) if size > prices[index]]
    worth, last_sizes = [0.0] * (device_cells + 1), [-1] * (device_cells + 1)
    for cell_count in range(1, device_cells + 1):
        best_worth, best_index = worth[cell_count - 1], -1
        for index, size, gain in gains_of_sizes:
            if size > cell_count:
                break
            candidate_worth = worth[cell_count - size] + gain
            if candidate_worth > best_worth:
                best_worth, best_index = candidate_worth, index
        worth[cell_count], last_sizes[cell_count] = best_worth, best_index
    return worth, last_sizes


def _best_pattern(sizes: Sequence[int], prices: Sequence[float], device_cells: int) -> tuple[float, list[int]]:
    """Fills an empty device with the parts that have the largest sum of (size - price).

    Returns the sum, and how many parts of each size were chosen.
    """
    worth, last_sizes = _worth(sizes, prices, device_cells)
    size_counts, cells_left = [0] * len(sizes), device_cells
    while cells_left > 0:
        if (index := last_sizes[cells_left]) < 0:
            cells_left -= 1
        else:
            size_counts[index] += 1
            cells_left -= sizes[index]
    return worth[device_cells], size_counts
