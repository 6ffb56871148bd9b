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
_Place = tuple[WorkloadKey, str, str]
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
    _since: dict[_Place, float] = field(default_factory=dict, init=False)
    _reported: set[_Place] = field(default_factory=set, init=False)

    def check(
        self, measured: Mapping[WorkloadKey, Sequence[Measurement]], kernels: Mapping[WorkloadKey, Kernel], now: float
    ) -> None:
        """Checks the measurements of one round for use above limits. ``now`` is the monotonic time in seconds."""
        excesses = {
            (key, item.key, str(item.device_id or "")): item
            for key, measurements in measured.items()
            if key in kernels
            for item in measurements
            if item.limit is not None and item.value > item.limit
        }
        self._since = {place: self._since.get(place, now) for place in excesses}
        lasting = {place for place, since in self._since.items() if now - since >= self.settings.device_overuse_grace}
        new = lasting - self._reported
        self._reported = lasting
        for place in sorted(new, key=str):
            self._act(kernels[place[0]], place, excesses[place])

    def _act(self, kernel: Kernel, place: _Place, item: Measurement) -> None:
        used, limit = _text_of(item, item.value), _text_of(item, item.limit or 0.0)
        message = f"it uses {used} of {place[1]} of the device {place[2]}, and its share is {limit}"
        log.warning("the kernel %s uses more than its share: %s", kernel.id, message)
        if self.settings.device_overuse == "end":
            self.end(kernel, message)

    def family(self) -> MetricFamily:
        """Returns the number of workloads above their share, by metric and device."""
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


def _text_of(item: Measurement, value: float) -> str:
    return f"{value / 2**20:.0f} MiB" if item.unit_hint == "bytes" else f"{value:g} {item.unit_hint}"
