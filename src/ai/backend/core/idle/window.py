"""Averages measurements of a session over a sliding window, in a limited number of buckets.

A window survives restarts as JSON. Time in which nobody measured is neither idle nor busy: buckets without a
measurement do not count, and a window with too few of them is not complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

BUCKET_COUNT = 60
MIN_MEASURED_PART = 0.9
"""The share of a window's buckets that must be measured before the window is evaluated."""


class _Bucket(msgspec.Struct, frozen=True):
    sums: Mapping[str, float]
    counts: Mapping[str, int]


class Window(msgspec.Struct, frozen=True):
    """Holds the measurements of the last ``length_s`` seconds.

    ``buckets``: number of the bucket since the epoch -> its sums.
    """

    length_s: float
    buckets: Mapping[int, _Bucket] = msgspec.field(default_factory=dict)

    @property
    def step_s(self) -> float:
        """The length of one bucket in seconds."""
        return self.length_s / BUCKET_COUNT

    def _bucket_number(self, moment: datetime) -> int:
        return int(moment.timestamp() // self.step_s)

    def add(self, measured_at: datetime, values: Mapping[str, float]) -> Window:
        """Returns the window with one more measurement, and without the buckets that are now too old."""
        newest_number = self._bucket_number(measured_at)
        buckets = {
            index: bucket
            for index, bucket in self.buckets.items()
            if newest_number - BUCKET_COUNT < index <= newest_number
        }
        earlier_bucket = buckets.get(newest_number, _Bucket({}, {}))
        sums = {name: earlier_bucket.sums.get(name, 0.0) + value for name, value in values.items()}
        counts = {name: earlier_bucket.counts.get(name, 0) + 1 for name in values}
        buckets[newest_number] = _Bucket({**earlier_bucket.sums, **sums}, {**earlier_bucket.counts, **counts})
        return Window(self.length_s, buckets)

    def is_complete(self, moment: datetime) -> bool:
        """Returns True if a sufficient part of the window before ``moment`` was measured."""
        newest_number = self._bucket_number(moment)
        return (
            sum(newest_number - BUCKET_COUNT <= index <= newest_number for index in self.buckets)
            >= BUCKET_COUNT * MIN_MEASURED_PART
        )

    def average(self, name: str, moment: datetime) -> float | None:
        """Returns the average over the buckets that have this measurement. Returns None if no bucket has it."""
        newest_number = self._bucket_number(moment)
        buckets = [
            bucket
            for index, bucket in self.buckets.items()
            if newest_number - BUCKET_COUNT <= index <= newest_number and bucket.counts.get(name)
        ]
        bucket_means = [bucket.sums[name] / bucket.counts[name] for bucket in buckets]
        return sum(bucket_means) / len(bucket_means) if bucket_means else None

    def to_json(self) -> dict[str, Any]:
        buckets = {
            str(index): [dict(bucket.sums), dict(bucket.counts)] for index, bucket in sorted(self.buckets.items())
        }
        return {"length": self.length_s, "buckets": buckets}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], length_s: float) -> Window:
        """Reads a stored window. Returns an empty window if the data is malformed or the length has changed."""
        try:
            if float(data["length"]) != length_s:
                return cls(length_s)
            buckets: dict[int, _Bucket] = {}
            for number, (sums, counts) in data["buckets"].items():
                sums_of_names = {str(name): float(value) for name, value in sums.items()}
                buckets[int(number)] = _Bucket(sums_of_names, {str(name): int(count) for name, count in counts.items()})
        except (KeyError, TypeError, ValueError, AttributeError):
            return cls(length_s)
        return cls(length_s, buckets)
