"""What a session has used lately: averages over a sliding window, in a bounded number of buckets.

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
"""The part of its buckets that a window needs before anybody is judged by it."""


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
        """What one bucket spans."""
        return self.length_s / BUCKETS

    def _number(self, at: datetime) -> int:
        return int(at.timestamp() // self.step_s)

    def add(self, at: datetime, values: Mapping[str, float]) -> Window:
        """With one measurement more, and without what is out of the window then."""
        number = self._number(at)
        kept = {i: b for i, b in self.buckets.items() if number - BUCKETS < i <= number}
        before = kept.get(number, _Bucket({}, {}))
        kept[number] = _Bucket(
            {**before.sums, **{name: before.sums.get(name, 0.0) + value for name, value in values.items()}},
            {**before.counts, **{name: before.counts.get(name, 0) + 1 for name in values}},
        )
        return Window(self.length_s, kept)

    def is_complete(self, at: datetime) -> bool:
        """Whether enough of the window before ``at`` was measured."""
        newest = self._number(at)
        return sum(newest - BUCKETS <= i <= newest for i in self.buckets) >= BUCKETS * COMPLETE

    def average(self, name: str, at: datetime) -> float | None:
        """Over the buckets that have this measurement, each counting once; None if none has."""
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
        """As kept; empty where it is malformed, or was of another length, which is then measured anew."""
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
