"""Converts metrics of the node to Prometheus families (docs/reference/metrics.md).

Labels are bounded by the hardware.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ai.backend.common.wire.reports import MetricFamily, MetricSample
from ai.backend.plugin.accelerator import Measurement, MetricKind

PREFIX = "backendai"
_UNITS: dict[str, tuple[str, float, str]] = {
    "bytes": ("_bytes", 1.0, "in bytes"),
    "percent": ("_ratio", 0.01, "as a ratio, 1 being one whole core or device"),
    "bps": ("_bytes", 1.0, "in bytes"),
    "msec": ("_seconds", 0.001, "in seconds"),
    "count": ("", 1.0, "counted"),
    "celsius": ("_celsius", 1.0, "in degrees Celsius"),
    "watt": ("_watts", 1.0, "in watts"),
    "joule": ("_joules", 1.0, "in joules"),
    "hertz": ("_hertz", 1.0, "in hertz"),
}
"""Unit of a measurement -> the suffix of its name, the factor into that unit, words for HELP."""
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


@dataclass(slots=True)
class WorkloadTotal:
    """The sum of one metric over all workloads: of a gauge now, of a counter since the agent's start."""

    example: Measurement
    value: float
    capacity: float | None


class Exposition:
    """Collects samples into families. A name that another kind of metric has is left out."""

    def __init__(self) -> None:
        self._families: dict[str, MetricFamily] = {}

    def families(self) -> list[MetricFamily]:
        return list(self._families.values())

    def node(self, measurements: Iterable[Measurement]) -> None:
        """Adds totals of the node."""
        for m in measurements:
            self._add("node", m, m.value, m.capacity, {}, "of the node")

    def devices(self, device_name: str, indexes: Mapping[str, int], measurements: Iterable[Measurement]) -> None:
        """Adds measurements of devices. ``places`` maps a device id to its index in the plugin's list."""
        for m in measurements:
            device_id = str(m.device_id)
            labels = {"device_name": device_name, "device_id": device_id, "index": str(indexes.get(device_id, ""))}
            self._add("device", m, m.value, m.capacity, labels, "of each device")
            if m.exported is not None:
                kind = "gauge" if m.kind is MetricKind.GAUGE else "unknown"  # its name is not ours to end in _total
                dcgm_labels = {"device_name": device_name, "gpu": labels["index"], "UUID": device_id}
                self._sample(m.exported.name, kind, m.exported.help, dcgm_labels, m.value * m.exported.factor)

    def workloads(self, totals: Iterable[WorkloadTotal]) -> None:
        """Adds sums over the workloads of this node."""
        for total in totals:
            self._add("workloads", total.example, total.value, total.capacity, {}, "of all workloads together")

    def _add(
        self, scope: str, m: Measurement, value: float, capacity: float | None, labels: dict[str, str], of: str
    ) -> None:
        suffix, factor, unit = _UNITS[m.unit_hint]
        name = f"{PREFIX}_{scope}_{_NOT_IN_A_NAME.sub('_', m.key)}"
        help_ = f"{m.key} {of}, {unit}."
        if m.kind is not MetricKind.GAUGE:
            self._sample(f"{name}{suffix}_total", "counter", help_, labels, value * factor)
            return
        self._sample(name + suffix, "gauge", help_, labels, value * factor)
        if capacity is not None:
            self._sample(f"{name}_capacity{suffix}", "gauge", f"Capacity: {help_}", labels, capacity * factor)

    def _sample(self, name: str, kind: str, help_: str, labels: dict[str, str], value: float) -> None:
        family = self._families.setdefault(name, MetricFamily(name=name, kind=kind, help=help_, samples=[]))
        if family.kind == kind:
            family.samples.append(MetricSample(labels=labels, value=value))
