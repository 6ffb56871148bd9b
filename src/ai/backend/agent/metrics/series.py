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


def text_of(value: float) -> str:
    """Formats whole numbers without a point, others with at most three decimals."""
    return f"{value:.0f}" if value == int(value) else f"{value:.3f}".rstrip("0").rstrip(".")


class Series:
    """One metric over time, in ``SIZE`` numbers of an array. ``diff`` and ``rate`` of a counter are never negative."""

    SIZE: ClassVar[int] = 8
    __slots__ = ("_at", "_numbers")

    def __init__(self, numbers: array[float] | None = None, at: int = 0) -> None:
        self._numbers = numbers if numbers is not None else room()
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
        place = slice(self._at, self._at + self.SIZE)
        count, total, least, most, last, diff, rate, last_at = self._numbers[place]
        if count == 0:
            least = most = value
        else:
            diff = value - last
            if diff < 0 and m.kind is not MetricKind.GAUGE:
                diff = 0.0
            rate = diff / (at - last_at) if at > last_at else 0.0
            least, most = min(least, value), max(most, value)
        count, total = count + 1, total + value
        self._numbers[place] = array("d", (count, total, least, most, value, diff, rate, at))
        current = rate if m.kind is MetricKind.RATE else value
        if m.unit_hint == "bytes":
            current = float(round(current))  # published clients read it as a whole number
        metric: Metric = {
            "current": text_of(current),
            "capacity": None if m.capacity is None else text_of(m.capacity),
            "pct": f"{current / m.capacity * 100:.2f}" if m.capacity else "0.00",
            "unit_hint": m.unit_hint,
        }
        wanted = m.stats
        if "min" in wanted:
            metric["stats.min"] = text_of(least)
        if "max" in wanted:
            metric["stats.max"] = text_of(most)
        if "sum" in wanted:
            metric["stats.sum"] = text_of(total)
        if "avg" in wanted:
            metric["stats.avg"] = text_of(total / count)
        if "diff" in wanted:
            metric["stats.diff"] = text_of(diff)
        if "rate" in wanted or m.kind is not MetricKind.GAUGE:
            metric["stats.rate"] = text_of(rate)
        return metric


def room() -> array[float]:
    """Returns the numbers of a series without a value."""
    return array("d", bytes(8 * Series.SIZE))


class SeriesOfWorkload:
    """The series of one workload by key, in one array (docs/decisions/0016).

    ``places`` maps keys to indexes in the array and is shared by all workloads, which mostly have the same keys.
    """

    __slots__ = ("_numbers", "_places")

    def __init__(self, places: dict[str, int]) -> None:
        self._places = places
        self._numbers = array("d")

    def __contains__(self, key: str) -> bool:
        """Returns whether the series has a value."""
        at = self._places.get(key, -1) * Series.SIZE
        return 0 <= at < len(self._numbers) and self._numbers[at] > 0

    def __getitem__(self, key: str) -> Series:
        """Returns the series of a key, which is created if there is none."""
        at = self._places.setdefault(key, len(self._places)) * Series.SIZE
        while len(self._numbers) <= at:
            self._numbers += room()
        return Series(self._numbers, at)


def totals(measurements: Iterable[Measurement]) -> dict[str, Measurement]:
    """Returns one measurement a key: that without a device, or the sum over devices (the maximum of temperatures)."""
    found: dict[str, Measurement] = {}
    for m in measurements:
        known = found.get(m.key)
        if known is None or (m.device_id is None and known.device_id is not None):
            found[m.key] = m
        elif known.device_id is not None and m.device_id is not None:
            found[m.key] = _both(known, m)
    return found


def _both(one: Measurement, other: Measurement) -> Measurement:
    if one.unit_hint == "celsius":
        return max(one, other, key=lambda m: m.value)
    capacity = None if one.capacity is None or other.capacity is None else one.capacity + other.capacity
    return replace(one, value=one.value + other.value, capacity=capacity, stats=one.stats | other.stats)
