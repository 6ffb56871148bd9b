"""Detects workloads that use more of a device than their share, and acts by the node's policy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ai.backend.agent.config.settings import ResourceSettings
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.common.wire.reports import MetricFamily, MetricSample
from ai.backend.plugin.accelerator import Measurement
from ai.backend.plugin.runtime import WorkloadKey

log = logging.getLogger(__name__)
_DeviceMetric = tuple[WorkloadKey, str, str]
"""A workload, a metric and a device."""


@dataclass(slots=True, eq=False)
class OveruseWatch:
    """Checks each round of statistics for workloads that use more than their limits.

    Use above a limit counts once it has lasted for the grace of the settings: programs free memory late. It is then
    logged once, counted in the node's metrics, and ends the workload where the policy says so; ``end`` gets the kernel
    and a sentence for its user.
    """

    settings: ResourceSettings
    end: Callable[[Kernel, str], None]
    _since: dict[_DeviceMetric, float] = field(default_factory=dict, init=False)
    _reported: set[_DeviceMetric] = field(default_factory=set, init=False)

    def check(
        self,
        measurements_of_workload: Mapping[WorkloadKey, Sequence[Measurement]],
        kernels: Mapping[WorkloadKey, Kernel],
        now: float,
    ) -> None:
        """Checks the measurements of one round for use above limits. ``now`` is the monotonic time in seconds."""
        excesses = {
            (key, measurement.key, str(measurement.device_id or "")): measurement
            for key, measurements in measurements_of_workload.items()
            if key in kernels
            for measurement in measurements
            if measurement.limit is not None and measurement.value > measurement.limit
        }
        self._since = {device_metric: self._since.get(device_metric, now) for device_metric in excesses}
        lasting_excesses = {
            device_metric
            for device_metric, exceeded_since in self._since.items()
            if now - exceeded_since >= self.settings.device_overuse_grace
        }
        new_excesses = lasting_excesses - self._reported
        self._reported = lasting_excesses
        for device_metric in sorted(new_excesses, key=str):
            self._handle_overuse(kernels[device_metric[0]], device_metric, excesses[device_metric])

    def _handle_overuse(self, kernel: Kernel, device_metric: _DeviceMetric, measurement: Measurement) -> None:
        used_text, limit_text = (
            _value_text(measurement, measurement.value),
            _value_text(measurement, measurement.limit or 0.0),
        )
        message = (
            f"it uses {used_text} of {device_metric[1]} of the device {device_metric[2]}, and its share is {limit_text}"
        )
        log.warning("the kernel %s uses more than its share: %s", kernel.id, message)
        if self.settings.device_overuse == "end":
            self.end(kernel, message)

    def family(self) -> MetricFamily:
        """Returns a metric for Prometheus: the number of workloads above their share, by metric and device."""
        counts: dict[tuple[str, str], int] = {}
        for _, name, device in self._reported:
            counts[name, device] = counts.get((name, device), 0) + 1
        return MetricFamily(
            name="backendai_device_overuse",
            kind="gauge",
            help="Workloads that use more of a device than their share.",
            samples=[
                MetricSample(labels={"metric": name, "device": device}, value=float(count))
                for (name, device), count in sorted(counts.items())
            ],
        )


def _value_text(measurement: Measurement, value: float) -> str:
    return f"{value / 2**20:.0f} MiB" if measurement.unit_hint == "bytes" else f"{value:g} {measurement.unit_hint}"
