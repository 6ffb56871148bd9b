"""Converts measurements to metrics (peer facts 3.6), whose numbers are texts.

A metric is ``{current, capacity, pct, unit_hint}`` and those of ``stats.{min,max,sum,avg,diff,rate}`` that its
measurement names; a rate has ``stats.total`` as well, what was counted in all.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import ClassVar

from ai.backend.common.structs import replace
from ai.backend.plugin.accelerator import Measurement, MetricKind

Metric = dict[str, str | None]


def format_number(value: float) -> str:
    """Formats whole numbers without a point, others with at most three decimals."""
    return f"{value:.0f}" if value == int(value) else f"{value:.3f}".rstrip("0").rstrip(".")


class Series:
    """Stores the number, sum, extremes, last value and growth of a metric's measurements in ``SIZE`` numbers.

    The numbers are part of an array. ``diff`` and ``rate`` of a counter are never negative.
    """

    SIZE: ClassVar[int] = 8
    __slots__ = ("_numbers", "_offset")

    def __init__(self, numbers: array[float] | None = None, offset: int = 0) -> None:
        self._numbers = numbers if numbers is not None else empty_series()
        self._offset = offset

    @property
    def diff(self) -> float:
        return self._numbers[self._offset + 5]

    @property
    def rate(self) -> float:
        return self._numbers[self._offset + 6]

    @property
    def last(self) -> float:
        return self._numbers[self._offset + 4]

    @property
    def largest(self) -> float:
        return self._numbers[self._offset + 3]

    @property
    def last_at(self) -> float:
        return self._numbers[self._offset + 7]

    def add(self, measurement: Measurement, measured_at: float, carried_value: float = 0.0) -> Metric:
        """Adds a measured value at the time ``measured_at`` of any clock, and returns the metric.

        A clock that stands still gives a rate of zero. ``carried_value`` is what was counted before the measurement
        began: a counter begins there, and a maximum is no less.
        """
        is_gauge = measurement.kind is MetricKind.GAUGE
        value = measurement.value if is_gauge else measurement.value + carried_value
        number_slice = slice(self._offset, self._offset + self.SIZE)
        count, total, smallest, largest, last, diff, rate, last_at = self._numbers[number_slice]
        if count == 0:
            smallest = largest = value
        else:
            diff = value - last
            if diff < 0 and not is_gauge:
                diff = 0.0
            rate = diff / (measured_at - last_at) if measured_at > last_at else 0.0
            smallest, largest = min(smallest, value), max(largest, value)
        count, total = count + 1, total + value
        self._numbers[number_slice] = array("d", (count, total, smallest, largest, value, diff, rate, measured_at))
        current = rate if measurement.kind is MetricKind.RATE else value
        if measurement.unit_hint == "bytes":
            current = float(round(current))  # published clients read it as a whole number
        metric: Metric = {
            "current": format_number(current),
            "capacity": None if measurement.capacity is None else format_number(measurement.capacity),
            "pct": f"{current / measurement.capacity * 100:.2f}" if measurement.capacity else "0.00",
            "unit_hint": measurement.unit_hint,
        }
        statistic_of_name = {
            "min": smallest,
            "max": max(largest, carried_value) if is_gauge else largest,
            "sum": total,
            "avg": total / count,
            "diff": diff,
            "rate": rate,
            "total": value,
        }
        requested_statistics = measurement.stats if is_gauge else measurement.stats | {"rate"}
        if measurement.kind is MetricKind.RATE:
            requested_statistics = requested_statistics | {"total"}
        metric |= {
            f"stats.{name}": format_number(number)
            for name, number in statistic_of_name.items()
            if name in requested_statistics
        }
        return metric


def empty_series() -> array[float]:
    """Returns an array for a series that has no measured value yet."""
    return array("d", bytes(8 * Series.SIZE))


class SeriesOfWorkload:
    """Holds the series of all metrics of one workload by key, in one array (docs/decisions/0016).

    ``indexes`` maps keys to indexes in the array and is shared by all workloads, which mostly have the same keys.
    """

    __slots__ = ("_indexes", "_numbers")

    def __init__(self, indexes: dict[str, int]) -> None:
        self._indexes = indexes
        self._numbers = array("d")

    def __contains__(self, key: str) -> bool:
        """Returns True if the series of a key has a value."""
        offset = self._indexes.get(key, -1) * Series.SIZE
        return 0 <= offset < len(self._numbers) and self._numbers[offset] > 0

    @property
    def last_at(self) -> float:
        """The time of the newest measurement; 0.0 without any."""
        return max(self._numbers[Series.SIZE - 1 :: Series.SIZE], default=0.0)

    def __getitem__(self, key: str) -> Series:
        """Returns the series of a key, which is created if there is none."""
        offset = self._indexes.setdefault(key, len(self._indexes)) * Series.SIZE
        while len(self._numbers) <= offset:
            self._numbers += empty_series()
        return Series(self._numbers, offset)


def totals(measurements: Iterable[Measurement]) -> dict[str, Measurement]:
    """Returns one measurement for each key: the one without a device, or else the sum over all devices.

    For temperatures it is the maximum over all devices.
    """
    total_of_key: dict[str, Measurement] = {}
    for measurement in measurements:
        existing = total_of_key.get(measurement.key)
        if existing is None or (measurement.device_id is None and existing.device_id is not None):
            total_of_key[measurement.key] = measurement
        elif existing.device_id is not None and measurement.device_id is not None:
            total_of_key[measurement.key] = _combine_devices(existing, measurement)
    return total_of_key


def _combine_devices(first_measurement: Measurement, second_measurement: Measurement) -> Measurement:
    if first_measurement.unit_hint == "celsius":
        return max(first_measurement, second_measurement, key=lambda measurement: measurement.value)
    capacity = (
        None
        if first_measurement.capacity is None or second_measurement.capacity is None
        else first_measurement.capacity + second_measurement.capacity
    )
    return replace(
        first_measurement,
        value=first_measurement.value + second_measurement.value,
        capacity=capacity,
        stats=first_measurement.stats | second_measurement.stats,
    )
