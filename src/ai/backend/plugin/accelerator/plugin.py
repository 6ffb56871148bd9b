"""Defines the interface that a plugin for a kind of device implements, its metrics, and its optional powers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel

from ai.backend.common.devices import (
    AllocMapSpec,
    ComputeDevice,
    DeviceAllocation,
    DeviceHealth,
    SlotDisplay,
    VariantNamespace,
)
from ai.backend.common.errors import PluginError
from ai.backend.common.ids import DeviceId, DeviceName, KernelId, SlotName
from ai.backend.core.allocation.alloc_map import AbstractAllocMap
from ai.backend.core.allocation.stock_maps import build_alloc_map
from ai.backend.plugin.accelerator.hooks import AbstractLifecycleHook, HookContext, Workload, WorkloadConfig
from ai.backend.plugin.options import schema_of

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
    """Holds the second name under which Prometheus shows a metric, for existing dashboards: ``DCGM_FI_DEV_FB_USED``.

    Prometheus then shows the metric of each device under it besides our own name, with the labels ``gpu`` and ``UUID``
    that DCGM's exporter gives. ``factor`` turns our unit into the one of that name (1 / 2**20 for MiB).
    """

    name: str
    help: str
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Holds one raw value of a metric.

    ``key`` is of letters, digits and ``_ . -``; a plugin has at most 64 of them. ``value`` is finite and not negative,
    in a unit of :data:`UNITS`; ``capacity`` is in the same unit and positive; ``stats`` selects of :data:`STATS`. The
    agent adds up those of one key with several ``device_id`` (of temperatures the highest counts) unless one without
    gives the total. ``limit``, of a workload's metric, is what the workload may use of that device: use above it is
    over-use, on which the agent acts as ``resource.device-overuse`` says.
    """

    key: str
    value: float
    unit_hint: str
    capacity: float | None = None
    kind: MetricKind = MetricKind.GAUGE
    stats: frozenset[str] = frozenset()
    device_id: DeviceId | None = None
    exported: ExportedName | None = None
    limit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatContext:
    """Holds the parameters of one gathering of metrics: the time, the workloads, and their processes.

    ``at`` is Unix time; ``allocations`` are of the workloads that hold devices of the plugin; ``pids`` are their host
    processes, with ``process_metrics`` and where the runtime knows them.
    """

    at: float
    allocations: Mapping[KernelId, DeviceAllocation] = field(default_factory=dict)
    pids: Mapping[KernelId, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginCapabilities:
    """Declares by flags which optional powers a plugin has.

    A flag that is set promises the Protocol of the same name.
    """

    partitionable: bool = False
    programmable: bool = False
    power_controllable: bool = False
    attachable: bool = False
    health_watching: bool = False
    cdi_provider: bool = False
    process_metrics: bool = False
    diagnosable: bool = False
    """The hooks respect ``context.is_diagnostic``: they show an administrator devices without taking them."""
    blocking: bool = False
    """The plugin loads vendor libraries: run it in a host process of its own, where it may block or crash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealthChange:
    """Describes a change of a device's health.

    ``reason`` is for people ("Xid 79: the GPU fell off the bus"); or empty.
    """

    device_id: DeviceId
    health: DeviceHealth
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProfile:
    """Describes a kind of partition into which a device can be cut.

    ``available``: how many more of it fit now. ``slices``: of the device's compute slices, which all kinds share; 0 if
    only ``memory_size`` (bytes) bounds what fits.
    """

    name: str
    slot_name: SlotName
    amount: Decimal = Decimal(1)
    memory_size: int = 0
    available: int = 0
    slices: int = 0


@runtime_checkable
class HealthWatching(Protocol):
    """Reports changes of devices' health at once (capability ``health_watching``).

    So the agent learns of them sooner than by the next ``list_devices``.
    """

    def watch_health(self) -> AsyncIterator[DeviceHealthChange]:
        """Yields changes of health as they happen.

        The iteration never ends. A change may repeat, or be lost while nobody listens: ``list_devices`` is the truth.
        An exception ends the watch; the agent starts another one later.
        """
        ...


@runtime_checkable
class Partitionable(Protocol):
    """Cuts devices into partitions that are devices of their own, such as MIG (capability ``partitionable``)."""

    async def partition_profiles(self, device_id: DeviceId) -> Sequence[PartitionProfile]:
        """Lists the kinds of partitions that a device offers.

        Raises NotFound for an unknown device and for a partition.
        """
        ...

    async def create_partition(self, device_id: DeviceId, profile: str) -> DeviceId:
        """Creates a partition, which ``list_devices`` lists from now on. Raises Conflict while the device is in use."""
        ...

    async def destroy_partition(self, partition_id: DeviceId) -> None:
        """Destroys a partition. Safe if it is gone; raises Conflict while it is in use."""
        ...


@runtime_checkable
class Programmable(Protocol):
    """Loads an image (a bitstream) into a device before use (capability ``programmable``)."""

    async def program(self, device_id: DeviceId, image: str) -> None:
        """Loads an image file of the host into a device.

        Loading the same image again is safe. Raises InvalidInput if it does not fit.
        """
        ...

    async def programmed_image(self, device_id: DeviceId) -> str | None:
        """Returns the path of the image that a device has loaded. Returns None without an image."""
        ...


@runtime_checkable
class PowerControllable(Protocol):
    """Switches devices off and resets them (capability ``power_controllable``).

    Every call is safe if the device is so already.
    """

    async def power_on(self, device_id: DeviceId) -> None: ...
    async def power_off(self, device_id: DeviceId) -> None:
        """Switches a device off. Raises Conflict while a workload holds it."""
        ...

    async def reset(self, device_id: DeviceId) -> None:
        """Resets a device. Raises Conflict while a workload holds it."""
        ...


@runtime_checkable
class Attachable(Protocol):
    """Attaches devices of another machine to this node, and detaches them again (capability ``attachable``)."""

    async def attachable_devices(self) -> Sequence[DeviceId]: ...
    async def attach(self, device_id: DeviceId) -> None:
        """Attaches a device, which ``list_devices`` lists from now on. Safe if it is attached."""
        ...

    async def detach(self, device_id: DeviceId) -> None:
        """Detaches a device. Raises Conflict while a workload holds the device. Safe if the device is gone."""
        ...


@runtime_checkable
class CdiProvider(Protocol):
    """Provides descriptions of the plugin's devices in the form of the Container Device Interface (CDI).

    The capability is ``cdi_provider``.
    """

    async def cdi_spec(self) -> Mapping[str, Any]:
        """Returns a CDI specification (``cdiVersion`` 0.6.0) of all healthy devices as JSON.

        Its names are those of ``DeviceMapping.cdi_name``. The agent writes it for the runtime, with the lowest version
        that its fields need, without devices that another file describes; the process runtime applies the edits itself,
        but no hooks.
        """
        ...


POWERS: Mapping[str, type] = {
    "partitionable": Partitionable,
    "programmable": Programmable,
    "power_controllable": PowerControllable,
    "attachable": Attachable,
    "health_watching": HealthWatching,
    "cdi_provider": CdiProvider,
}
"""Capability flag -> the Protocol that it promises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedDevice:
    """Describes a device as a user sees it in a session (peer facts 2.1, ``get_attached_devices``)."""

    device_id: DeviceId
    model_name: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """Holds the versions of the driver and the runtime, and other facts about the node.

    Keys of ``extra`` are for people.
    """

    driver_version: str | None = None
    runtime_version: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)


class AbstractComputePlugin(ABC):
    """The base of accelerator plugins: serves one kind of device on one node.

    It is constructed with its settings; then come ``init`` once, any calls, ``cleanup`` once. ``key`` is the
    device name, and the first part of slot names unless ``key_is_slot_prefix`` says otherwise.
    """

    key: ClassVar[DeviceName]
    spi_version: ClassVar[int] = 30
    version: ClassVar[str] = "0"
    verified_on: ClassVar[str | None] = None
    """Hardware, driver and command that the recorded fixtures of its tests come from; None: unverified on hardware."""
    settings_model: ClassVar[type[BaseModel] | None] = None
    options_model: ClassVar[type[BaseModel] | None] = None
    """The model of the ``plugin_options`` that a session may give, a :class:`PluginOptions`; None: it takes none."""
    key_is_slot_prefix: ClassVar[bool] = True
    """Whether slot names begin with ``key``; a plugin whose slots its settings name says no."""
    capabilities: ClassVar[PluginCapabilities] = PluginCapabilities()

    def __init__(self, settings: BaseModel | None = None) -> None:
        self.settings = settings

    @classmethod
    def options_schema(cls) -> Mapping[str, Any] | None:
        """Returns the JSON Schema (2020-12) of the options that a session may give.

        Returns None if it may give none. The default is the schema of :attr:`options_model`. Raises ValueError for one
        of more than 64 KiB.
        """
        return schema_of(cls.options_model)

    async def init(self) -> None:
        """Acquires the libraries and files that the plugin needs. An exception stops the plugin, not the agent."""

    async def cleanup(self) -> None:
        """Releases what ``init`` acquired. Safe without ``init``."""

    @abstractmethod
    async def list_devices(self) -> Sequence[ComputeDevice]:
        """Returns the node's devices, both healthy and unhealthy ones. Ids are unique and stable over restarts."""

    @abstractmethod
    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        """Returns every slot that this plugin can offer under any settings, with display metadata."""

    async def available_slots(self) -> Mapping[SlotName, Decimal]:
        """Returns the total of each slot over healthy devices, as configured now.

        The default is :func:`slot_totals` of the devices. The agent learns of slots that no device offers at the
        moment; of others it adds up the devices that it knows to be healthy.
        """
        return slot_totals(await self.list_devices())

    async def variant_namespaces(self) -> Sequence[VariantNamespace]:
        """Returns the namespaces of the devices' variant properties (BEP-1000).

        A namespace has the rules by which a device's variant properties satisfy the requirements of sessions.
        """
        return ()

    @abstractmethod
    def alloc_map_spec(self) -> AllocMapSpec | None:
        """Returns the parameters of the stock alloc map that this plugin uses.

        Returns None if ``create_alloc_map`` makes its own map.
        """

    async def create_alloc_map(self) -> AbstractAllocMap:
        """Returns a new alloc map of the devices, in which nothing is allocated. The default is the stock map."""
        spec = self.alloc_map_spec()
        if spec is None:
            raise PluginError(f"{type(self).__name__} has neither a stock alloc map nor one of its own")
        return build_alloc_map(spec, await self.list_devices())

    def create_lifecycle_hook(
        self, workload: Workload, device_alloc: DeviceAllocation, context: HookContext
    ) -> AbstractLifecycleHook:
        """Returns a hook for one workload. The default hook only calls :meth:`configure`. Must not do IO."""
        return PluginHook(workload, device_alloc, context, self)

    async def configure(self, workload: Workload, device_alloc: DeviceAllocation) -> WorkloadConfig:
        """Returns the configuration that the default hook gives to a workload before its creation."""
        return WorkloadConfig()

    @abstractmethod
    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        """Returns the devices of an allocation with facts that the user sees."""

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
    """Returns the sum of each slot over healthy devices, in whole quanta of each device.

    The sum is zero if all devices of the slot are unhealthy.
    """
    totals: dict[SlotName, Decimal] = {}
    for device in devices:
        for slot in device.slots:
            whole_amount = slot.amount // slot.quantum * slot.quantum
            offered_amount = whole_amount if device.health is DeviceHealth.HEALTHY else Decimal(0)
            totals[slot.slot_name] = totals.get(slot.slot_name, Decimal(0)) + offered_amount
    return totals


def resource_lines(
    prefix: str, ids: Iterable[str], shares: Sequence[tuple[int, int, int]] | None = None
) -> dict[str, str]:
    """Returns a plugin's entries of the session's file ``resource.txt``: device ids, and the limits of shared devices.

    Libraries in the session read the file (peer facts 2.4). ``shares`` are (number of the device, bytes of memory,
    processors) of devices that are held in parts.
    """
    lines = {
        f"{prefix}_GLOBAL_DEVICE_IDS": ",".join(f"{rank}:{device_id}" for rank, device_id in enumerate(ids)),
        f"{prefix}_RESOURCE_VIRTUALIZED": str(int(shares is not None)),
    }
    if shares is not None:
        lines[f"{prefix}_MEMORY_LIMITS"] = ",".join(f"{rank}:{memory_bytes}" for rank, memory_bytes, _ in shares)
        lines[f"{prefix}_PROCESSOR_LIMITS"] = ",".join(f"{rank}:{cores}" for rank, _, cores in shares)
    return lines


class PluginHook(AbstractLifecycleHook):
    """The default lifecycle hook: returns the plugin's ``configure`` before the creation, and does nothing else."""

    def __init__(
        self, workload: Workload, device_alloc: DeviceAllocation, context: HookContext, plugin: AbstractComputePlugin
    ) -> None:
        super().__init__(workload, device_alloc, context)
        self._plugin = plugin

    async def pre_create(self) -> WorkloadConfig:
        return await self._plugin.configure(self.workload, self.device_alloc)
