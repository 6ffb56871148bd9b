"""Names of ``ai.backend.agent.stats`` that v1 plugins use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any, NoReturn

from ai.backend.common.errors import PluginError

__all__ = [
    "ContainerMeasurement", "Measurement", "MetricTypes", "NodeMeasurement", "ProcessMeasurement", "StatContext",
    "StatModes",
]  # fmt: skip


class StatModes(StrEnum):
    CGROUP = "cgroup"
    DOCKER = "docker"


class MetricTypes(Enum):
    GAUGE = 0
    USAGE = 1
    RATE = 2
    UTILIZATION = 3
    ACCUMULATED = 4


@dataclass
class Measurement:
    value: Decimal
    capacity: Decimal | None = None


# The three below repeat their last fields: plugins give them by position, behind those in which they differ.
@dataclass
class NodeMeasurement:
    key: str
    type: MetricTypes
    per_node: Measurement
    per_device: Mapping[str, Measurement] = field(default_factory=dict)
    unit_hint: str | None = None
    stats_filter: frozenset[str] = frozenset()
    current_hook: Callable[[Any], Decimal] | None = None


@dataclass
class ContainerMeasurement:
    key: str
    type: MetricTypes
    per_container: Mapping[str, Measurement] = field(default_factory=dict)
    unit_hint: str | None = None
    stats_filter: frozenset[str] = frozenset()
    current_hook: Callable[[Any], Decimal] | None = None


@dataclass
class ProcessMeasurement:
    key: str
    type: MetricTypes
    per_process: Mapping[int, Measurement] = field(default_factory=dict)
    unit_hint: str | None = None
    stats_filter: frozenset[str] = frozenset()
    current_hook: Callable[[Any], Decimal] | None = None


class StatContext:
    """The class of v1 that is passed to methods that measure. It has only ``mode``; other attributes raise PluginError.

    The error names the attribute.
    """

    mode = StatModes.CGROUP

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise PluginError(f"a v1 plugin has no StatContext.{name} here")
