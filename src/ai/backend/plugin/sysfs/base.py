"""Implements the common parts of plugins that read sysfs: finding whole devices, and measuring them.

Devices can vanish; measurements are made of raw readings.
"""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import ClassVar, TypeVar

from pydantic import BaseModel, Field

from ai.backend.common.devices import (
    AllocationStrategy,
    AllocMapSpec,
    ComputeDevice,
    DeviceAllocation,
    DeviceHealth,
    DeviceSlot,
)
from ai.backend.common.errors import CreationDeferred
from ai.backend.common.ids import DeviceId, KernelId, SlotName
from ai.backend.common.states import SlotType
from ai.backend.common.structs import replace
from ai.backend.plugin.accelerator import (
    AbstractComputePlugin,
    AbstractLifecycleHook,
    AttachedDevice,
    DeviceMapping,
    HookContext,
    Measurement,
    MetricKind,
    PluginCapabilities,
    StatContext,
    Workload,
    WorkloadConfig,
)
from ai.backend.plugin.accelerator.plugin import PluginHook
from ai.backend.plugin.settings import PluginSettings
from ai.backend.plugin.sysfs.tree import Tree

GAUGE_STATS = frozenset({"avg", "max"})
COUNTER_STATS = frozenset({"diff", "rate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """Holds one reading of a metric of one device, before it is converted to a measurement.

    ``together`` says how those of several devices are combined: ``sum`` or ``max``.
    """

    key: str
    device_id: DeviceId
    value: float
    unit: str
    capacity: float | None = None
    accumulated: bool = False
    together: str = "sum"

    @property
    def usable(self) -> bool:
        """True if the value is a finite number from 0 on and below 2**63.

        A missing sensor often returns -1, or all bits set.
        """
        return math.isfinite(self.value) and 0 <= self.value < 2**63


def measurements(readings: Iterable[Raw]) -> list[Measurement]:
    """Converts readings to measurements: first those of the whole node, then those of each device."""
    usable_readings = [reading for reading in readings if reading.usable]
    return [
        *_combined_measurements(usable_readings),
        *(_measurement_of(reading, reading.device_id) for reading in usable_readings),
    ]


def of_workload(readings: Iterable[Raw], devices: Collection[DeviceId]) -> list[Measurement]:
    """Returns the measurements of one workload: the readings of its devices, combined as if they were one device."""
    return _combined_measurements([reading for reading in readings if reading.usable and reading.device_id in devices])


def _combined_measurements(all_readings: Sequence[Raw]) -> list[Measurement]:
    measurements = []
    for key in dict.fromkeys(reading.key for reading in all_readings):
        readings = [reading for reading in all_readings if reading.key == key]
        combine = max if readings[0].together == "max" else math.fsum
        capacities = [reading.capacity for reading in readings if reading.capacity is not None]
        combined_reading = Raw(
            key=key,
            device_id=readings[0].device_id,
            value=combine([reading.value for reading in readings]),
            unit=readings[0].unit,
            capacity=combine(capacities) if len(capacities) == len(readings) else None,
            accumulated=readings[0].accumulated,
        )
        measurements.append(_measurement_of(combined_reading, None))
    return measurements


def _measurement_of(reading: Raw, device_id: DeviceId | None) -> Measurement:
    """Converts a reading to a measurement. If the value of a gauge is above its capacity, the capacity is raised.

    Power is above its capacity for moments.
    """
    capacity = (
        reading.capacity
        if reading.capacity is not None and math.isfinite(reading.capacity) and reading.capacity > 0
        else None
    )
    if capacity is not None and not reading.accumulated:
        capacity = max(capacity, reading.value)
    return Measurement(
        key=reading.key,
        value=reading.value,
        unit_hint=reading.unit,
        capacity=capacity,
        kind=MetricKind.ACCUMULATED if reading.accumulated else MetricKind.GAUGE,
        stats=COUNTER_STATS if reading.accumulated else GAUGE_STATS,
        device_id=device_id,
    )


T = TypeVar("T")
GONE_REASON = "the device is gone"
RETRY_AFTER_S = 10.0


class TreeSettings(PluginSettings):
    """Settings that every plugin over sysfs has."""

    sysfs_root: Path = Field(default=Path("/sys"), description="Where sysfs is mounted.")
    dev_root: Path = Field(default=Path("/dev"), description="Where device nodes are looked for.")
    device_mask: tuple[str, ...] = Field(default=(), description="Ids or PCI addresses of devices to leave out.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedDevice:
    """Describes a device, its device nodes below /dev, and ``fields`` that the plugin needs later."""

    device: ComputeDevice
    nodes: tuple[DeviceMapping, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)


class TreeHook(PluginHook):
    """The lifecycle hook of sysfs plugins: returns a workload's configuration before its creation, or for a diagnosis.

    Nothing is taken, so that a diagnosis only needs existing devices.
    """

    _plugin: TreePlugin

    async def pre_create(self) -> WorkloadConfig:
        return await self._plugin.configuration(
            self.workload, self.device_alloc, is_diagnostic=self.context.is_diagnostic
        )


class TreePlugin(AbstractComputePlugin):
    """Finds devices by a blocking scan of sysfs, and allocates each device as a whole.

    All reading runs in one thread of its own, so that a hanging driver delays this plugin alone. A device that was
    healthy once and has vanished is listed as unhealthy until the agent restarts, for those that hold it.
    """

    settings_model: ClassVar[type[BaseModel] | None] = TreeSettings
    capabilities: ClassVar[PluginCapabilities] = PluginCapabilities(diagnosable=True)

    def __init__(self, settings: BaseModel | None = None) -> None:
        super().__init__(settings)
        self.roots = settings if isinstance(settings, TreeSettings) else TreeSettings()
        self.tree = Tree(self.roots.sysfs_root, self.roots.dev_root)
        self._seen: dict[DeviceId, ScannedDevice] = {}
        self._listed: list[ScannedDevice] | None = None
        self._measured: tuple[float, Sequence[Raw]] | None = None
        self._thread: ThreadPoolExecutor | None = None

    @abstractmethod
    def scan(self) -> Sequence[ScannedDevice]:
        """Returns the devices that exist now, both healthy and unhealthy ones. Blocking; ids are unique."""

    @abstractmethod
    def config(self, held: Sequence[ScannedDevice], workload: Workload) -> WorkloadConfig:
        """Returns the configuration of a workload except device nodes and groups. Blocking; ``held`` is not empty."""

    @abstractmethod
    def measure(self, scanned: Sequence[ScannedDevice]) -> Sequence[Raw]:
        """Reads every metric of these devices that is available now. Blocking."""

    async def cleanup(self) -> None:
        executor, self._thread = self._thread, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)

    async def reading(self, work: Callable[[], T]) -> T:
        """Runs a blocking function in the plugin's thread, and returns its result."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"accelerator-{self.key}")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _scan_unmasked(self) -> list[ScannedDevice]:
        """Scans the devices, leaves out the masked ones, and adds earlier devices that have vanished, as unhealthy."""
        masked_ids = set(self.roots.device_mask)
        present_devices = {
            candidate.device.device_id: candidate
            for candidate in self.scan()
            if not masked_ids & {candidate.device.device_id, candidate.device.hw_location}
        }
        removed_devices = [scanned for device_id, scanned in self._seen.items() if device_id not in present_devices]
        self._seen |= {device_id: scanned for device_id, scanned in present_devices.items() if is_healthy(scanned)}
        self._listed = [*present_devices.values(), *(_mark_vanished(scanned) for scanned in removed_devices)]
        return self._listed

    async def list_devices(self) -> Sequence[ComputeDevice]:
        return [scanned.device for scanned in await self.reading(self._scan_unmasked)]

    def alloc_map_spec(self) -> AllocMapSpec:
        return AllocMapSpec(kind="discrete", strategy=AllocationStrategy.FILL)

    async def configure(self, workload: Workload, device_alloc: DeviceAllocation) -> WorkloadConfig:
        """Returns a workload's configuration: the device nodes, the groups of the nodes, and the plugin's additions.

        Raises CreationDeferred if a device of the allocation cannot be used now.
        """
        return await self.configuration(workload, device_alloc)

    def create_lifecycle_hook(
        self, workload: Workload, device_alloc: DeviceAllocation, context: HookContext
    ) -> AbstractLifecycleHook:
        return TreeHook(workload, device_alloc, context, self)

    async def configuration(
        self, workload: Workload, device_alloc: DeviceAllocation, *, is_diagnostic: bool = False
    ) -> WorkloadConfig:
        """Returns the configuration of a workload, like :meth:`configure`.

        With ``is_diagnostic`` also for devices that have failed.
        """
        device_ids = device_alloc.device_ids()
        if not device_ids:
            return WorkloadConfig()

        def configure_devices() -> WorkloadConfig:
            held_devices = [scanned for scanned in self._scan_unmasked() if scanned.device.device_id in device_ids]
            lost_ids = device_ids - {scanned.device.device_id for scanned in held_devices}
            faults = {
                scanned.device.device_id: scanned.device.health_reason
                for scanned in held_devices
                if not is_diagnostic and not is_healthy(scanned)
            }
            faults |= dict.fromkeys(sorted(lost_ids), GONE_REASON)
            if faults:
                fault_text = "; ".join(f"{device_id}: {reason}" for device_id, reason in faults.items())
                raise CreationDeferred(f"{self.key} cannot be used now: {fault_text}", retry_after=RETRY_AFTER_S)
            nodes = {node.source: node for scanned in held_devices for node in scanned.nodes}
            groups = {group for path in nodes if (group := self.tree.group(path)) is not None}
            return replace(
                self.config(held_devices, workload), devices=tuple(nodes.values()), extra_gids=tuple(sorted(groups))
            )

        return await self.reading(configure_devices)

    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        device_ids = device_alloc.device_ids()
        if not device_ids:
            return ()
        device_by_id = {scanned.device.device_id: scanned.device for scanned in await self.reading(self._scan_unmasked)}
        return [self._describe_attached(device_id, device_by_id.get(device_id)) for device_id in sorted(device_ids)]

    def _describe_attached(self, device_id: DeviceId, device: ComputeDevice | None) -> AttachedDevice:
        if device is None:
            return AttachedDevice(device_id=device_id, model_name=f"unknown {self.key}")
        details = {"smp": device.processing_units, "mem": device.memory_size}
        return AttachedDevice(device_id=device_id, model_name=device.model_name or self.key, data=details)

    async def _readings(self, round_time: float) -> Sequence[Raw]:
        """Returns the readings of all listed devices. Reads the devices only once for each ``round_time``."""

        def measure_devices() -> Sequence[Raw]:
            if self._measured is None or self._measured[0] != round_time:
                listed_devices = self._listed if self._listed is not None else self._scan_unmasked()
                self._measured = (
                    round_time,
                    self.measure([scanned for scanned in listed_devices if not is_gone(scanned)]),
                )
            return self._measured[1]

        return await self.reading(measure_devices)

    async def gather_node_metrics(self, ctx: StatContext) -> Sequence[Measurement]:
        return measurements(await self._readings(ctx.at))

    async def gather_workload_metrics(
        self, ctx: StatContext, kernels: Sequence[KernelId]
    ) -> Mapping[KernelId, Sequence[Measurement]]:
        """Returns the metrics of each workload's devices. A workload holds its devices as a whole."""
        held_ids = {
            kernel: allocation.device_ids()
            for kernel in kernels
            if (allocation := ctx.allocations.get(kernel)) is not None and allocation.device_ids()
        }
        if not held_ids:
            return {}
        readings = await self._readings(ctx.at)
        return {kernel_id: of_workload(readings, device_ids) for kernel_id, device_ids in held_ids.items()}


def whole(slot_name: str) -> tuple[DeviceSlot, ...]:
    """Returns the slots of a device that is allocated as a whole, which is one slot with the amount 1."""
    return (DeviceSlot(slot_name=SlotName(slot_name), slot_type=SlotType.COUNT, amount=Decimal(1)),)


def distinct(serial_pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns a unique id for each device, by the device's place.

    The id is the serial number, or the place if two devices share a serial number.
    """
    serial_by_place = list(serial_pairs)
    serials = [serial for _, serial in serial_by_place]
    return {
        device_place: serial if serials.count(serial) == 1 else device_place for device_place, serial in serial_by_place
    }


def is_healthy(scanned: ScannedDevice) -> bool:
    return scanned.device.health is DeviceHealth.HEALTHY


def is_gone(scanned: ScannedDevice) -> bool:
    return scanned.device.health_reason == GONE_REASON


def _mark_vanished(scanned: ScannedDevice) -> ScannedDevice:
    return replace(
        scanned, device=replace(scanned.device, health=DeviceHealth.UNHEALTHY, health_reason=GONE_REASON, links=())
    )
