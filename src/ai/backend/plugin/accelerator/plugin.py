"""The interface that a plugin for a kind of device implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar

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
from ai.backend.plugin.accelerator.hooks import AbstractLifecycleHook, HookContext, Workload
from ai.backend.plugin.accelerator.metrics import Measurement, StatContext
from ai.backend.plugin.accelerator.powers import PluginCapabilities


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


class AbstractComputePlugin(ABC):
    """Serves one kind of device on one node.

    Lifetime: constructed with its settings, ``init`` once, then any calls, ``cleanup`` once. ``key`` is the device
    name, and the first part of every slot name unless ``key_is_slot_prefix`` says otherwise.
    """

    key: ClassVar[DeviceName]
    spi_version: ClassVar[int] = 30
    version: ClassVar[str] = "0"
    verified_on: ClassVar[str | None] = None
    """Hardware, driver and command that the recorded fixtures of its tests come from; None: unverified on hardware."""
    settings_model: ClassVar[type[BaseModel] | None] = None
    key_is_slot_prefix: ClassVar[bool] = True
    """Whether slot names begin with ``key``; a plugin whose slots its settings name says no."""
    capabilities: ClassVar[PluginCapabilities] = PluginCapabilities()

    def __init__(self, settings: BaseModel | None = None) -> None:
        self.settings = settings

    async def init(self) -> None:
        """Acquire what the plugin needs. Raising stops the plugin, not the agent."""

    async def cleanup(self) -> None:
        """Release it. Safe without ``init``."""

    @abstractmethod
    async def list_devices(self) -> Sequence[ComputeDevice]:
        """Returns the node's devices, healthy or not. Ids are unique and stable over restarts."""

    @abstractmethod
    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        """Returns every slot that this plugin can offer under any settings, with display metadata."""

    @abstractmethod
    async def available_slots(self) -> Mapping[SlotName, Decimal]:
        """Slot -> total over healthy devices, as configured now; :func:`slot_totals` of the devices.

        The agent asks for it to learn of slots that no device offers at the moment. For a slot that a listed device
        offers it takes the sum over the devices that it treats as healthy, whatever is answered here: it hears of
        failures, and withholds devices, before the plugin is asked again.
        """

    async def variant_namespaces(self) -> Sequence[VariantNamespace]:
        """How the variant properties of the devices are compared with what a session asks for (BEP-1000)."""
        return ()

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
        """Returns a hook for one workload; the default does nothing. Must not do IO."""
        return _NullHook(workload, device_alloc, context)

    @abstractmethod
    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        """Returns the devices of an allocation with what a user should know of them."""

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
