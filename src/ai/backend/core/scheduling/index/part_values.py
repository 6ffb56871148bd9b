"""Values free parts of shared devices by the use that typical requests can still make of the parts.

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
    """Holds the worth of free parts of a device, in devices, by the number of free cells of ``unit`` quanta."""

    unit: int
    worth: tuple[float, ...]

    def lost(self, free_quanta: int, taken_quanta: int) -> float:
        """Returns the worth, in devices, that a device with ``free_quanta`` loses if ``taken_quanta`` are taken."""
        return self.worth[free_quanta // self.unit] - self.worth[(free_quanta - taken_quanta) // self.unit]


def demand_of(sizes: Mapping[int, float], largest: int) -> tuple[int, Demand]:
    """Returns the unit in which parts of a device are measured, in quanta of the slot, and the usual parts in it.

    ``sizes`` maps a request's quanta to the number of such requests for each device.

    A request of more than one device counts as the equal shares in which devices give it.
    """
    shares: dict[int, float] = {}
    for size, count in sizes.items():
        device_count = -(-size // largest)
        share = -(-size // device_count)
        shares[share] = shares.get(share, 0.0) + count * device_count
    frequent = sorted(shares, key=lambda size: (-shares[size] * size, size))[:_MAX_SIZES]
    unit = max(gcd(largest, *frequent), -(-largest // _MAX_CELLS))
    cells: dict[int, int] = {}
    for size in frequent:
        number = min(-(-size // unit), largest // unit)
        cells[number] = cells.get(number, 0) + max(1, round(shares[size] * _PRECISION))
    return unit, tuple(sorted(cells.items()))


def part_values(unit: int, largest: int, demand: Demand) -> PartValues:
    """Prices the typical sizes, and returns the worth of every free part. Equal arguments give an equal result."""
    room = largest // unit
    sizes = [size for size, _ in demand]
    _, prices = price_sizes(sizes, [count / _PRECISION for _, count in demand], room, _STEPS)
    worth = _worth(sizes, prices, room)[0]
    return PartValues(unit, tuple(value / room for value in worth))


def price_sizes(sizes: Sequence[int], supply: Sequence[float], room: int, steps: int) -> tuple[float, Sequence[float]]:
    """Computes the prices of sizes. Sizes are in cells, ascending, ``supply`` of which come for each device of ``room``
    cells.

    Returns the value of the dual problem and its prices: no placement fills more cells of a device on average than the
    value, whatever the prices. By subgradient steps with Polyak's stride. O(steps * room * sizes).
    """
    prices: list[float] = [0.0] * len(sizes)
    best_value, best_prices, ambition = float("inf"), prices, 0.02
    for step in range(steps):
        value, used = _best_pattern(sizes, prices, room)
        value += sum(count * price for count, price in zip(supply, prices, strict=True))
        if value < best_value:
            best_value, best_prices = value, prices
        if step % (steps // 20) == steps // 20 - 1:
            ambition *= 0.85
        slope = [count - used_count for count, used_count in zip(supply, used, strict=True)]
        stride = (value - best_value * (1 - ambition)) / (sum(part * part for part in slope) or 1.0)
        prices = [max(0.0, price - stride * part) for price, part in zip(prices, slope, strict=True)]
    return best_value, best_prices


class PartValueCache:
    """Caches part values by their demand, because a mix of requests that hardly changes is priced only once."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, int, Demand], PartValues] = {}

    def get(self, sizes: Mapping[int, float], largest: int) -> PartValues:
        """Returns the values for requests of these sizes; see :func:`demand_of`."""
        unit, demand = demand_of(sizes, largest)
        key = unit, largest, demand
        values = self._values.get(key)
        if values is None:
            if len(self._values) >= _MAX_CACHED:
                self._values.clear()
            values = self._values[key] = part_values(unit, largest, demand)
        return values


def _worth(sizes: Sequence[int], prices: Sequence[float], room: int) -> tuple[list[float], list[int]]:
    """Returns the worth of each number of cells, and the index of the last size in its best pattern.

    -1 means no size.
    """
    gains = [(index, size, size - prices[index]) for index, size in enumerate(sizes) if size > prices[index]]
    worth, last = [0.0] * (room + 1), [-1] * (room + 1)
    for space in range(1, room + 1):
        most, chosen = worth[space - 1], -1
        for index, size, gain in gains:
            if size > space:
                break
            candidate = worth[space - size] + gain
            if candidate > most:
                most, chosen = candidate, index
        worth[space], last[space] = most, chosen
    return worth, last


def _best_pattern(sizes: Sequence[int], prices: Sequence[float], room: int) -> tuple[float, list[int]]:
    """Returns the worth of the best pattern of one device, and how often the pattern contains each size."""
    worth, last = _worth(sizes, prices, room)
    used, space = [0] * len(sizes), room
    while space > 0:
        if (index := last[space]) < 0:
            space -= 1
        else:
            used[index] += 1
            space -= sizes[index]
    return worth[room], used
