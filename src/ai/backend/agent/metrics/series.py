"""Converts measurements to metrics (peer facts 3.6), whose numbers are texts.

A metric is ``{current, capacity, pct, unit_hint}`` and those of ``stats.{min,max,sum,avg,diff,rate}`` that its
measurement names.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from ai.backend.plugin.accelerator import Measurement, MetricKind

Metric = dict[str, str | None]


def format_number(value: float) -> str:
    """Formats whole numbers without a point, others with at most three decimals."""
    return f"{value:.0f}" if value == int(value) else f"{value:.3f}".rstrip("0").rstrip(".")


class Series:
    """One metric over time, in ``SIZE`` numbers of an array. ``diff`` and ``rate`` of a counter are never negative."""

    SIZE: ClassVar[int] = 8
    __slots__ = ("_at", "_numbers")

    def __init__(self, numbers: array[float] | None = None, at: int = 0) -> None:
        self._numbers = numbers if numbers is not None else empty_series()
        self._at = at

    @property
    def diff(self) -> float:
        return self._numbers[self._at + 5]

    @property
    def rate(self) -> float:
        return self._numbers[self._at + 6]

    @property
    def last_at(self) -> float:
        return self._numbers[self._at + 7]

    def add(self, m: Measurement, at: float) -> Metric:
        """Adds a value at a time of any clock, and returns the metric.

        A clock that stands still gives a rate of zero.
        """
        value = m.value
        span = slice(self._at, self._at + self.SIZE)
        count, total, least, most, last, diff, rate, last_at = self._numbers[span]
        if count == 0:
            least = most = value
        else:
            diff = value - last
            if diff < 0 and m.kind is not MetricKind.GAUGE:
                diff = 0.0
            rate = diff / (at - last_at) if at > last_at else 0.0
            least, most = min(least, value), max(most, value)
        count, total = count + 1, total + value
        self._numbers[span] = array("d", (count, total, least, most, value, diff, rate, at))
        current = rate if m.kind is MetricKind.RATE else value
        if m.unit_hint == "bytes":
            current = float(round(current))  # published clients read it as a whole number
        metric: Metric = {
            "current": format_number(current),
            "capacity": None if m.capacity is None else format_number(m.capacity),
            "pct": f"{current / m.capacity * 100:.2f}" if m.capacity else "0.00",
            "unit_hint": m.unit_hint,
        }
        statistics = {"min": least, "max": most, "sum": total, "avg": total / count, "diff": diff, "rate": rate}
        requested = m.stats if m.kind is MetricKind.GAUGE else m.stats | {"rate"}
        metric |= {f"stats.{name}": format_number(n) for name, n in statistics.items() if name in requested}
        return metric


def empty_series() -> array[float]:
    """Returns the numbers of a series without a value."""
    return array("d", bytes(8 * Series.SIZE))


class SeriesOfWorkload:
    """The series of one workload by key, in one array (docs/decisions/0016).

    ``places`` maps keys to indexes in the array and is shared by all workloads, which mostly have the same keys.
    """

    __slots__ = ("_indexes", "_numbers")

    def __init__(self, indexes: dict[str, int]) -> None:
        self._indexes = indexes
        self._numbers = array("d")

    def __contains__(self, key: str) -> bool:
        """Returns whether the series has a value."""
        at = self._indexes.get(key, -1) * Series.SIZE
        return 0 <= at < len(self._numbers) and self._numbers[at] > 0

    def __getitem__(self, key: str) -> Series:
        """Returns the series of a key, which is created if there is none."""
        at = self._indexes.setdefault(key, len(self._indexes)) * Series.SIZE
        while len(self._numbers) <= at:
            self._numbers += empty_series()
        return Series(self._numbers, at)


def totals(measurements: Iterable[Measurement]) -> dict[str, Measurement]:
    """Returns one measurement a key: that without a device, or the sum over devices (the maximum of temperatures)."""
    result: dict[str, Measurement] = {}
    for m in measurements:
        existing = result.get(m.key)
        if existing is None or (m.device_id is None and existing.device_id is not None):
            result[m.key] = m
        elif existing.device_id is not None and m.device_id is not None:
            result[m.key] = _combine(existing, m)
    return result


def _combine(first: Measurement, second: Measurement) -> Measurement:
    if first.unit_hint == "celsius":
        return max(first, second, key=lambda m: m.value)
    capacity = None if first.capacity is None or second.capacity is None else first.capacity + second.capacity
    return replace(first, value=first.value + second.value, capacity=capacity, stats=first.stats | second.stats)
