"""Accelerator Interface v2: what a plugin for a kind of device implements.

Source: spec 00-accelerator-interface-v2, BEP-1000 (peer facts 1.1). Everything passed is a frozen dataclass; no type of
a container engine, a database or a client appears here. Plugins are found by the entry point group
``backendai_accelerator_v30`` and by full package path in ``agent.toml`` (``allow-compute-plugins``).

Contract in short: every call has a deadline; every call may be repeated after a crash; calls for different workloads
may run concurrently, calls for one workload never do; a raised exception degrades the plugin and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, ClassVar, Literal

from pydantic import BaseModel

from ai.backend.common.devices import AllocMapSpec, ComputeDevice, DeviceAllocation, DeviceHealth, SlotDisplay
from ai.backend.common.errors import CreationDeferred, CreationDenied, PluginError
from ai.backend.common.ids import DeviceId, DeviceName, KernelId, SessionId, SlotName
from ai.backend.core.allocation.alloc_map import AbstractAllocMap
from ai.backend.core.allocation.build import build_alloc_map
from ai.backend.core.allocation.discrete import DiscreteAllocMap
from ai.backend.core.allocation.fractional import FractionalAllocMap

__all__ = [
    "AbstractAllocMap",
    "AbstractComputePlugin",
    "AbstractLifecycleHook",
    "AttachedDevice",
    "CreationDeferred",
    "CreationDenied",
    "DeviceMapping",
    "DiscreteAllocMap",
    "FractionalAllocMap",
    "HookContext",
    "LifecycleCause",
    "ManagedState",
    "Measurement",
    "MetricKind",
    "Mount",
    "NodeInfo",
    "PluginCapabilities",
    "StatContext",
    "TerminationDeferred",
    "Workload",
    "WorkloadConfig",
    "build_alloc_map",
    "slot_totals",
]

ENTRY_POINT_GROUP = "backendai_accelerator_v30"
MANAGED_STATE_LIMIT = 65_536


class LifecycleCause(StrEnum):
    """Why a hook is called."""

    CREATE = "create"
    RESTART_IN_PLACE = "restart-in-place"
    RELOCATE = "relocate"
    RECOVER = "recover"


class TerminationDeferred(Exception):
    """Raised by ``pre_terminate`` to ask for time; honoured until the deadline, never a cancellation.

    Args:
        retry_after: seconds until ``pre_terminate`` is called again.
    """

    def __init__(self, reason: str = "", *, retry_after: float = 1.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A kernel's incarnation on this node: a container or a tree of native processes.

    ``id`` is the runtime's identifier (container id or leader process id); empty until the workload is created.
    """

    id: str
    type: Literal["container", "process_tree"]
    kernel_id: KernelId
    session_id: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host path in the workload; ``target`` is absolute."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMapping:
    """A device node in the workload.

    ``permissions`` is a subset of ``rwm``; ``cdi_name`` is used where the runtime has CDI.
    """

    source: str
    target: str | None = None
    permissions: str = "rw"
    cdi_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """What a plugin wants of a workload. All fields are optional (spec 00, "WorkloadConfig").

    Configs of several plugins merge in allocation order; the same key or target with different values denies the
    creation naming both plugins. ``networks`` apply only where the network namespace is isolated, ``extra_syscalls``
    only where there is a filter, ``cpuset``/``memory_nodes`` and ``cpu_limit``/``memory_limit_bytes`` only where the
    runtime enforces them.
    """

    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceMapping, ...] = ()
    env_vars: Mapping[str, str] = field(default_factory=dict)
    resource_data: Mapping[str, str] = field(default_factory=dict)
    networks: tuple[str, ...] = ()
    extra_gids: tuple[int, ...] = ()
    extra_syscalls: tuple[str, ...] = ()
    cpuset: tuple[int, ...] = ()
    memory_nodes: tuple[int, ...] = ()
    cpu_limit: float | None = None
    memory_limit_bytes: int | None = None


class ManagedState:
    """A small JSON object that the agent keeps with the workload for one plugin.

    Present again after an agent restart, gone after ``post_terminate``. At most 64 KiB of JSON; ``version`` is the
    plugin's.
    """

    __slots__ = ("data", "version")

    def __init__(self, data: Mapping[str, Any] | None = None, version: int = 1) -> None:
        self.data: dict[str, Any] = dict(data or {})
        self.version = version


@dataclass(frozen=True, slots=True, kw_only=True)
class HookContext:
    """Circumstances of a hook call.

    ``previous_allocation`` is set for restarts. ``deadline_s`` is how long the call may take.
    """

    cause: LifecycleCause
    attempt: int
    state: ManagedState
    previous_allocation: DeviceAllocation | None = None
    deadline_s: float = 30.0


class AbstractLifecycleHook(ABC):  # noqa: B024  # every method has a default: a hook overrides what it needs
    """What a plugin does around the life of one workload.

    Stateless: an instance may be made anew before any call; what must survive goes into ``context.state``. Each method
    may be called again with the same arguments after a crash and must then have the same effect once.
    """

    def __init__(self, workload: Workload, device_alloc: DeviceAllocation, context: HookContext) -> None:
        self.workload = workload
        self.device_alloc = device_alloc
        self.context = context

    async def pre_create(self) -> WorkloadConfig:
        """Prepare the devices before the workload exists.

        Raises:
            CreationDenied: the kernel fails for good with this reason shown to its user.
            CreationDeferred: the allocation is returned and the kernel goes back to the scheduler.
        """
        return WorkloadConfig()

    async def post_create(self) -> None:
        """Called once the workload runs. A failure is recorded and retried; it does not end the workload."""

    async def pre_terminate(self) -> None:
        """Called before the workload is ended.

        Raises:
            TerminationDeferred: ask for time, until the deadline.
        """

    async def post_terminate(self) -> None:
        """Called once the workload is gone, also after a failed creation, also if ``pre_create`` never finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedDevice:
    """A device as a user sees it in a session (peer facts 2.1, ``get_attached_devices``)."""

    device_id: DeviceId
    model_name: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """Versions and hardware facts of the node. Keys of ``extra`` are for people."""

    driver_version: str | None = None
    runtime_version: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)


class MetricKind(StrEnum):
    GAUGE = "gauge"
    ACCUMULATED = "accumulated"
    """Grows for ever; the rate is what matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One raw value.

    ``unit_hint`` is one of bytes, percent, bps, msec, count, celsius, watt; ``capacity`` is in the same unit.

    ``stats`` names which of min, max, sum, avg, diff, rate the agent keeps.
    """

    key: str
    value: float
    unit_hint: str
    capacity: float | None = None
    kind: MetricKind = MetricKind.GAUGE
    stats: frozenset[str] = frozenset()
    device_id: DeviceId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatContext:
    """When, and of what, metrics are gathered.

    ``pids`` maps a workload to its processes, where the runtime knows them.
    """

    at: float
    allocations: Mapping[KernelId, DeviceAllocation] = field(default_factory=dict)
    pids: Mapping[KernelId, tuple[int, ...]] = field(default_factory=dict)
    cgroups: Mapping[KernelId, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginCapabilities:
    """Optional powers. A flag that is set promises the Protocol of the same name."""

    partitionable: bool = False
    programmable: bool = False
    power_controllable: bool = False
    attachable: bool = False
    health_watching: bool = False
    cdi_provider: bool = False
    process_metrics: bool = False
    blocking: bool = False
    """The plugin loads vendor libraries: run it in a host process of its own."""


class AbstractComputePlugin(ABC):
    """One kind of device on one node.

    Lifetime: constructed with its settings, ``init`` once, then any calls, ``cleanup`` once. ``key`` is the device name
    and the first part of every slot name of the plugin.
    """

    key: ClassVar[DeviceName]
    spi_version: ClassVar[int] = 30
    version: ClassVar[str] = "0"
    settings_model: ClassVar[type[BaseModel] | None] = None
    capabilities: ClassVar[PluginCapabilities] = PluginCapabilities()

    def __init__(self, settings: BaseModel | None = None) -> None:
        self.settings = settings

    async def init(self) -> None:
        """Acquire what the plugin needs. Raising stops the plugin, not the agent."""

    async def cleanup(self) -> None:
        """Release it. Safe without ``init``."""

    @abstractmethod
    async def list_devices(self) -> Sequence[ComputeDevice]:
        """The node's devices, healthy or not. Ids are unique and stable over restarts."""

    @abstractmethod
    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        """Every slot that this plugin can offer under any settings, with display metadata."""

    @abstractmethod
    async def available_slots(self) -> Mapping[SlotName, Decimal]:
        """Slot -> total over healthy devices, as configured now; :func:`slot_totals` of the devices."""

    @abstractmethod
    def alloc_map_spec(self) -> AllocMapSpec | None:
        """The stock alloc map that this plugin uses, as data; None if ``create_alloc_map`` returns one of its own."""

    async def create_alloc_map(self) -> AbstractAllocMap:
        """A fresh alloc map over ``list_devices`` with nothing allocated; the stock one unless it is overridden."""
        spec = self.alloc_map_spec()
        if spec is None:
            raise PluginError(f"{type(self).__name__} has neither a stock alloc map nor one of its own")
        return build_alloc_map(spec, await self.list_devices())

    def create_lifecycle_hook(
        self, workload: Workload, device_alloc: DeviceAllocation, context: HookContext
    ) -> AbstractLifecycleHook:
        """A hook for one workload; the default does nothing. Must not do IO."""
        return _NullHook(workload, device_alloc, context)

    @abstractmethod
    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        """The devices of an allocation with what a user should know of them."""

    async def gather_node_metrics(self, ctx: StatContext) -> Sequence[Measurement]:
        return ()

    async def gather_workload_metrics(
        self, ctx: StatContext, kernels: Sequence[KernelId]
    ) -> Mapping[KernelId, Sequence[Measurement]]:
        return {}

    async def gather_process_metrics(
        self, ctx: StatContext, pids: Mapping[int, KernelId]
    ) -> Mapping[int, Sequence[Measurement]]:
        return {}

    async def get_node_info(self) -> NodeInfo:
        return NodeInfo()


def slot_totals(devices: Iterable[ComputeDevice]) -> dict[SlotName, Decimal]:
    """Each slot's sum over healthy devices, in whole quanta of each; zero where every device of a slot is unhealthy."""
    totals: dict[SlotName, Decimal] = {}
    for device in devices:
        for slot in device.slots:
            whole = slot.amount // slot.quantum * slot.quantum
            offered = whole if device.health is DeviceHealth.HEALTHY else Decimal(0)
            totals[slot.slot_name] = totals.get(slot.slot_name, Decimal(0)) + offered
    return totals


class _NullHook(AbstractLifecycleHook):
    """Does nothing around a workload."""
