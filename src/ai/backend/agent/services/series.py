"""Raw measurements made into the metrics that people see (peer facts 3.6): every number is text.

A metric is ``{current, capacity, pct, unit_hint}`` and those of ``stats.{min,max,sum,avg,diff,rate}`` that its
measurement names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ai.backend.plugin.accelerator import Measurement, MetricKind

Metric = dict[str, str | None]


def text_of(value: float) -> str:
    """Plain decimals: whole numbers without a point, others with at most three decimals."""
    return f"{value:.0f}" if value == int(value) else f"{value:.3f}".rstrip("0").rstrip(".")


class Series:
    """One metric over time.

    Of what accumulates, ``diff`` and ``rate`` are never negative: a counter that was reset counts from where it is now.
    """

    __slots__ = ("_count", "_max", "_min", "_sum", "diff", "last", "last_at", "rate")

    def __init__(self) -> None:
        self._count = 0
        self._sum = self._min = self._max = 0.0
        self.rate = 0.0
        self.last = self.last_at = self.diff = 0.0

    def add(self, m: Measurement, at: float) -> Metric:
        """Take in one value; ``at`` in seconds of any clock. A clock that does not advance gives a rate of zero."""
        value = m.value
        if self._count == 0:
            self._min = self._max = value
        else:
            self.diff = value - self.last
            if self.diff < 0 and m.kind is not MetricKind.GAUGE:
                self.diff = 0.0
            self.rate = self.diff / (at - self.last_at) if at > self.last_at else 0.0
            if value < self._min:
                self._min = value
            elif value > self._max:
                self._max = value
        self.last, self.last_at = value, at
        self._count += 1
        self._sum += value
        current = self.rate if m.kind is MetricKind.RATE else value
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
            metric["stats.min"] = text_of(self._min)
        if "max" in wanted:
            metric["stats.max"] = text_of(self._max)
        if "sum" in wanted:
            metric["stats.sum"] = text_of(self._sum)
        if "avg" in wanted:
            metric["stats.avg"] = text_of(self._sum / self._count)
        if "diff" in wanted:
            metric["stats.diff"] = text_of(self.diff)
        if "rate" in wanted or m.kind is not MetricKind.GAUGE:
            metric["stats.rate"] = text_of(self.rate)
        return metric


def totals(measurements: Iterable[Measurement]) -> dict[str, Measurement]:
    """One measurement for each key: the one without a device if there is one, else the sum over the devices.

    Temperatures are not added: the highest counts. A sum has a capacity only if every part has one.
    """
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
