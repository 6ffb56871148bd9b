"""Defines Accelerator Interface v2, the interface of a plugin for a kind of device (spec 00, BEP-1000).

Everything passed is a frozen dataclass. Plugins are found by the entry point group ``backendai_accelerator_v30`` and by
package path in ``agent.toml`` (``allow-compute-plugins``). Every call has a deadline and may be repeated after a crash;
calls for different workloads may run concurrently, calls for one never do; an exception degrades the plugin alone.
"""

from __future__ import annotations

from ai.backend.common.devices import ComputeDevice
from ai.backend.common.errors import CreationDeferred, CreationDenied
from ai.backend.core.allocation.alloc_map import AbstractAllocMap
from ai.backend.core.allocation.stock_maps import DiscreteAllocMap, FractionalAllocMap, build_alloc_map
from ai.backend.plugin.accelerator.hooks import (
    MANAGED_STATE_LIMIT,
    AbstractLifecycleHook,
    DeviceMapping,
    HookContext,
    LifecycleCause,
    ManagedState,
    Mount,
    TerminationDeferred,
    Workload,
    WorkloadConfig,
    WorkloadImage,
    check_config,
)
from ai.backend.plugin.accelerator.plugin import (
    POWERS,
    STATS,
    UNITS,
    AbstractComputePlugin,
    Attachable,
    AttachedDevice,
    CdiProvider,
    DeviceHealthChange,
    ExportedName,
    HealthWatching,
    Measurement,
    MetricKind,
    NodeInfo,
    Partitionable,
    PartitionProfile,
    PluginCapabilities,
    PowerControllable,
    Programmable,
    StatContext,
    slot_totals,
)
from ai.backend.plugin.accelerator.programming import ProgrammableOptions, image_in
from ai.backend.plugin.options import PluginOptions

__all__ = [
    "ENTRY_POINT_GROUP", "MANAGED_STATE_LIMIT", "POWERS", "STATS", "UNITS", "AbstractAllocMap", "AbstractComputeDevice",
    "AbstractComputePlugin", "AbstractLifecycleHook", "Attachable", "AttachedDevice", "CdiProvider", "ComputeDevice",
    "CreationDeferred", "CreationDenied", "DeviceHealthChange", "DeviceMapping", "DiscreteAllocMap", "ExportedName",
    "FractionalAllocMap", "HealthWatching", "HookContext", "LifecycleCause", "ManagedState", "Measurement",
    "MetricKind", "Mount", "NodeInfo", "PartitionProfile", "Partitionable", "PluginCapabilities", "PluginOptions",
    "PowerControllable", "Programmable", "ProgrammableOptions", "StatContext",
    "TerminationDeferred", "Workload", "WorkloadConfig", "WorkloadImage",
    "build_alloc_map", "check_config", "image_in", "slot_totals",
]  # fmt: skip

ENTRY_POINT_GROUP = "backendai_accelerator_v30"

AbstractComputeDevice = ComputeDevice
"""The specification's name (spec 00): here it is plain data, so that a device can travel to the manager's planner."""
