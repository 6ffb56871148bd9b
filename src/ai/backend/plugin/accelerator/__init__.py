"""Accelerator Interface v2: the interface of a plugin for a kind of device.

Source: spec 00-accelerator-interface-v2, BEP-1000 (peer facts 1.1). Everything passed is a frozen dataclass; no type of
a container engine, a database or a client appears here. Plugins are found by the entry point group
``backendai_accelerator_v30`` and by full package path in ``agent.toml`` (``allow-compute-plugins``).

Contract in short: every call has a deadline; every call may be repeated after a crash; calls for different workloads
may run concurrently, calls for one workload never do; a raised exception degrades the plugin and nothing else.
"""

from __future__ import annotations

from ai.backend.common.devices import ComputeDevice
from ai.backend.common.errors import CreationDeferred, CreationDenied
from ai.backend.core.allocation.alloc_map import AbstractAllocMap
from ai.backend.core.allocation.stock_maps import DiscreteAllocMap, FractionalAllocMap, build_alloc_map
from ai.backend.plugin.accelerator.config_rules import check_config
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
)
from ai.backend.plugin.accelerator.metrics import (
    STATS,
    UNITS,
    ExportedName,
    Measurement,
    MetricKind,
    StatContext,
)
from ai.backend.plugin.accelerator.plugin import (
    AbstractComputePlugin,
    AttachedDevice,
    NodeInfo,
    slot_totals,
)
from ai.backend.plugin.accelerator.powers import (
    POWERS,
    Attachable,
    CdiProvider,
    DeviceHealthChange,
    HealthWatching,
    Partitionable,
    PartitionProfile,
    PluginCapabilities,
    PowerControllable,
    Programmable,
)

__all__ = [
    "ENTRY_POINT_GROUP",
    "MANAGED_STATE_LIMIT",
    "POWERS",
    "STATS",
    "UNITS",
    "AbstractAllocMap",
    "AbstractComputeDevice",
    "AbstractComputePlugin",
    "AbstractLifecycleHook",
    "Attachable",
    "AttachedDevice",
    "CdiProvider",
    "ComputeDevice",
    "CreationDeferred",
    "CreationDenied",
    "DeviceHealthChange",
    "DeviceMapping",
    "DiscreteAllocMap",
    "ExportedName",
    "FractionalAllocMap",
    "HealthWatching",
    "HookContext",
    "LifecycleCause",
    "ManagedState",
    "Measurement",
    "MetricKind",
    "Mount",
    "NodeInfo",
    "PartitionProfile",
    "Partitionable",
    "PluginCapabilities",
    "PowerControllable",
    "Programmable",
    "StatContext",
    "TerminationDeferred",
    "Workload",
    "WorkloadConfig",
    "build_alloc_map",
    "check_config",
    "slot_totals",
]

ENTRY_POINT_GROUP = "backendai_accelerator_v30"

AbstractComputeDevice = ComputeDevice
"""The specification's name (spec 00): here it is plain data, so that a device can travel to the manager's planner."""
