"""Averages measurements of a session over a sliding window, in a limited number of buckets.

A window survives restarts as JSON. Time in which nobody measured is neither idle nor busy: buckets without a
measurement do not count, and a window with too few of them is not complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

BUCKETS = 60
COMPLETE = 0.9
"""The part of its buckets that a window needs before it is evaluated."""


@dataclass(frozen=True, slots=True)
class _Bucket:
    sums: Mapping[str, float]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Window:
    """Measurements of the last ``length_s`` seconds. ``buckets``: number of the bucket since the epoch -> its sums."""

    length_s: float
    buckets: Mapping[int, _Bucket] = field(default_factory=dict)

    @property
    def step_s(self) -> float:
        """The length of one bucket in seconds."""
        return self.length_s / BUCKETS

    def _number(self, at: datetime) -> int:
        return int(at.timestamp() // self.step_s)

    def add(self, at: datetime, values: Mapping[str, float]) -> Window:
        """Returns the window with one more measurement, without those that left it."""
        number = self._number(at)
        kept = {i: b for i, b in self.buckets.items() if number - BUCKETS < i <= number}
        before = kept.get(number, _Bucket({}, {}))
        kept[number] = _Bucket(
            {**before.sums, **{name: before.sums.get(name, 0.0) + value for name, value in values.items()}},
            {**before.counts, **{name: before.counts.get(name, 0) + 1 for name in values}},
        )
        return Window(self.length_s, kept)

    def is_complete(self, at: datetime) -> bool:
        """Returns True if enough of the window before ``at`` was measured."""
        newest = self._number(at)
        return sum(newest - BUCKETS <= i <= newest for i in self.buckets) >= BUCKETS * COMPLETE

    def average(self, name: str, at: datetime) -> float | None:
        """Returns the average over the buckets that have this measurement, each counted once; None without any."""
        newest = self._number(at)
        means = [
            b.sums[name] / b.counts[name]
            for i, b in self.buckets.items()
            if newest - BUCKETS <= i <= newest and b.counts.get(name)
        ]
        return sum(means) / len(means) if means else None

    def to_json(self) -> dict[str, Any]:
        return {
            "length": self.length_s,
            "buckets": {str(i): [dict(b.sums), dict(b.counts)] for i, b in sorted(self.buckets.items())},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], length_s: float) -> Window:
        """Reads a stored window; empty if it is malformed or had another length."""
        try:
            if float(data["length"]) != length_s:
                return cls(length_s)
            read = {
                int(i): _Bucket(
                    {str(n): float(v) for n, v in sums.items()}, {str(n): int(c) for n, c in counts.items()}
                )
                for i, (sums, counts) in data["buckets"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError):
            return cls(length_s)
        return cls(length_s, read)
