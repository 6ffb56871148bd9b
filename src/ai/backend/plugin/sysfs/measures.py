"""From raw readings of devices to measurements of the node and of a workload."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ai.backend.common.ids import DeviceId
from ai.backend.plugin.accelerator import Measurement, MetricKind

GAUGE_STATS = frozenset({"avg", "max"})
COUNTER_STATS = frozenset({"diff", "rate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """A metric of one device. ``together`` says how those of several devices are combined: ``sum`` or ``max``."""

    key: str
    device_id: DeviceId
    value: float
    unit: str
    capacity: float | None = None
    accumulated: bool = False
    together: str = "sum"

    @property
    def usable(self) -> bool:
        """A sensor that is not there often reads as -1 or as all ones."""
        return math.isfinite(self.value) and 0 <= self.value < 2**63


def measurements(raw: Iterable[Raw]) -> list[Measurement]:
    """Returns a measurement for each device, after one for the node."""
    usable = [r for r in raw if r.usable]
    return [*_together(usable), *(_measurement(r, r.device_id) for r in usable)]


def of_workload(raw: Iterable[Raw], devices: Collection[DeviceId]) -> list[Measurement]:
    """Returns the devices of one workload as if they were one."""
    return _together([r for r in raw if r.usable and r.device_id in devices])


def _together(raw: Sequence[Raw]) -> list[Measurement]:
    combined = []
    for key in dict.fromkeys(r.key for r in raw):
        parts = [r for r in raw if r.key == key]
        join = max if parts[0].together == "max" else math.fsum
        capacities = [r.capacity for r in parts if r.capacity is not None]
        one = Raw(
            key=key,
            device_id=parts[0].device_id,
            value=join([r.value for r in parts]),
            unit=parts[0].unit,
            capacity=join(capacities) if len(capacities) == len(parts) else None,
            accumulated=parts[0].accumulated,
        )
        combined.append(_measurement(one, None))
    return combined


def _measurement(raw: Raw, device_id: DeviceId | None) -> Measurement:
    """A gauge above its capacity (power does that for moments) raises the capacity that is told."""
    capacity = raw.capacity if raw.capacity is not None and math.isfinite(raw.capacity) and raw.capacity > 0 else None
    if capacity is not None and not raw.accumulated:
        capacity = max(capacity, raw.value)
    return Measurement(
        key=raw.key,
        value=raw.value,
        unit_hint=raw.unit,
        capacity=capacity,
        kind=MetricKind.ACCUMULATED if raw.accumulated else MetricKind.GAUGE,
        stats=COUNTER_STATS if raw.accumulated else GAUGE_STATS,
        device_id=device_id,
    )
