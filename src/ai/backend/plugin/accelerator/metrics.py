"""Metrics and measurements of accelerator plugins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.ids import DeviceId, KernelId

UNITS = frozenset({"bytes", "percent", "bps", "msec", "count", "celsius", "watt", "joule", "hertz"})
"""Every ``unit_hint``. ``bps`` are bytes per second, as in the published original."""
STATS = frozenset({"min", "max", "sum", "avg", "diff", "rate"})


class MetricKind(StrEnum):
    GAUGE = "gauge"
    ACCUMULATED = "accumulated"
    """Grows for ever; the rate is what matters."""
    RATE = "rate"
    """The value grows for ever, but people see how fast: ``current`` is its rate in 1/s. Its unit is ``bps``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedName:
    """A name that dashboards know already, such as ``DCGM_FI_DEV_FB_USED``.

    Prometheus then shows the metric of each device under it besides our own name, with the labels ``gpu`` and ``UUID``
    that DCGM's exporter gives. ``factor`` turns our unit into the one of that name (1 / 2**20 for MiB).
    """

    name: str
    help: str
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Holds one raw value of a metric.

    ``key`` is of letters, digits and ``_ . -``; a plugin has a fixed set of at most 64 of them. ``value`` is finite and
    not negative, ``unit_hint`` is one of :data:`UNITS`, ``capacity`` is in the same unit and positive.

    ``stats`` names which of :data:`STATS` the agent keeps.

    Measurements of one key with several ``device_id`` are parts of one: the agent adds them up (values and capacities,
    so that the percentage is the mean; of temperatures the highest counts) unless one without ``device_id`` says the
    total.
    """

    key: str
    value: float
    unit_hint: str
    capacity: float | None = None
    kind: MetricKind = MetricKind.GAUGE
    stats: frozenset[str] = frozenset()
    device_id: DeviceId | None = None
    exported: ExportedName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatContext:
    """When, and of what, metrics are gathered.

    ``at`` is Unix time. ``allocations`` are those of the workloads that hold devices of the plugin; ``pids`` maps them
    to their processes, numbered as on the host, where the plugin has ``process_metrics`` and the runtime knows them.
    """

    at: float
    allocations: Mapping[KernelId, DeviceAllocation] = field(default_factory=dict)
    pids: Mapping[KernelId, tuple[int, ...]] = field(default_factory=dict)
