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
_EXPORTED_UNIT: dict[str, tuple[str, float, str]] = {
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
_INVALID_CHARACTER = re.compile(r"[^a-zA-Z0-9_]")


@dataclass(slots=True)
class WorkloadTotal:
    """Holds the sum of one metric over all workloads of the node.

    A gauge's sum is that of the present values, a counter's sum that of the increases since the agent's start.
    """

    example: Measurement
    value: float
    capacity: float | None


class Exposition:
    """Collects samples into Prometheus metric families.

    Drops a sample whose name belongs to a metric of another kind.
    """

    def __init__(self) -> None:
        self._families: dict[str, MetricFamily] = {}

    def families(self) -> list[MetricFamily]:
        return list(self._families.values())

    def add_node(self, measurements: Iterable[Measurement]) -> None:
        """Adds the node's totals to the metric families."""
        for measurement in measurements:
            self._add_measurement("node", measurement, measurement.value, measurement.capacity, {}, "of the node")

    def add_devices(self, device_name: str, indexes: Mapping[str, int], measurements: Iterable[Measurement]) -> None:
        """Adds measurements of devices to the metric families.

        ``indexes`` maps a device id to its index in the plugin's list.
        """
        for measurement in measurements:
            device_id = str(measurement.device_id)
            labels = {"device_name": device_name, "device_id": device_id, "index": str(indexes.get(device_id, ""))}
            self._add_measurement(
                "device", measurement, measurement.value, measurement.capacity, labels, "of each device"
            )
            if measurement.exported is not None:
                kind = (
                    "gauge" if measurement.kind is MetricKind.GAUGE else "unknown"
                )  # its name is not ours to end in _total
                dcgm_labels = {"device_name": device_name, "gpu": labels["index"], "UUID": device_id}
                self._add_sample(
                    measurement.exported.name,
                    kind,
                    measurement.exported.help,
                    dcgm_labels,
                    measurement.value * measurement.exported.factor,
                )

    def add_workloads(self, totals: Iterable[WorkloadTotal]) -> None:
        """Adds sums over the node's workloads to the metric families."""
        for total in totals:
            self._add_measurement(
                "workloads", total.example, total.value, total.capacity, {}, "of all workloads together"
            )

    def _add_measurement(
        self,
        scope: str,
        measurement: Measurement,
        value: float,
        capacity: float | None,
        labels: dict[str, str],
        described_subject: str,
    ) -> None:
        suffix, unit_factor, unit = _EXPORTED_UNIT[measurement.unit_hint]
        name = f"{PREFIX}_{scope}_{_INVALID_CHARACTER.sub('_', measurement.key)}"
        help_ = f"{measurement.key} {described_subject}, {unit}."
        if measurement.kind is not MetricKind.GAUGE:
            self._add_sample(f"{name}{suffix}_total", "counter", help_, labels, value * unit_factor)
            return
        self._add_sample(name + suffix, "gauge", help_, labels, value * unit_factor)
        if capacity is not None:
            self._add_sample(f"{name}_capacity{suffix}", "gauge", f"Capacity: {help_}", labels, capacity * unit_factor)

    def _add_sample(self, name: str, kind: str, help_: str, labels: dict[str, str], value: float) -> None:
        family = self._families.setdefault(name, MetricFamily(name=name, kind=kind, help=help_, samples=[]))
        if family.kind == kind:
            family.samples.append(MetricSample(labels=labels, value=value))
