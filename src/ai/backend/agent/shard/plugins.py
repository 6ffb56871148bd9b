"""Offers the cores, the memory and the devices of a cluster's node, as read from the API server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import ClassVar

from ai.backend.accelerator.intrinsic import CPUPlugin, MemoryPlugin
from ai.backend.agent.config.kubernetes import DriverSettings, KubernetesSettings
from ai.backend.agent.shard.devices import device_name_of, slot_of
from ai.backend.agent.shard.nodes import NodeFacts
from ai.backend.common.devices import (
    AllocationStrategy,
    AllocMapSpec,
    ComputeDevice,
    DeviceAllocation,
    DeviceSlot,
    SlotDisplay,
)
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.states import SlotType
from ai.backend.plugin.accelerator import (
    AbstractComputePlugin,
    AttachedDevice,
    DeviceMapping,
    Workload,
    WorkloadConfig,
)
from ai.backend.plugin.discovery import PluginSource

ReadFacts = Callable[[], NodeFacts]


class NodePlugin(AbstractComputePlugin):
    """Represents the base of the plugins for a node of a Kubernetes cluster.

    Each node has a subclass of its own, whose attribute ``facts`` reads the facts of the node.
    """

    version: ClassVar[str] = "1"
    facts: ClassVar[ReadFacts]
    display: ClassVar[SlotDisplay]
    strategy: ClassVar[AllocationStrategy] = AllocationStrategy.FILL

    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        return [self.display]

    async def available_slots(self) -> Mapping[SlotName, Decimal]:
        return {self.display.slot_name: Decimal(0)} | dict(await super().available_slots())

    def alloc_map_spec(self) -> AllocMapSpec:
        return AllocMapSpec(kind="discrete", strategy=self.strategy)

    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        name = self.display.human_readable_name
        amount_of_device = device_alloc.slots.get(self.display.slot_name, {})
        return [AttachedDevice(device_id=device_id, model_name=name) for device_id in amount_of_device]

    def _pool(self, amount: int, memory_size: int = 0) -> list[ComputeDevice]:
        """Returns one device that has the whole amount of the node.

        The kubelet chooses which cores and pages a session gets.
        """
        slot = DeviceSlot(slot_name=self.display.slot_name, slot_type=self.display.slot_type, amount=Decimal(amount))
        return [
            ComputeDevice(
                device_name=self.key,
                device_id=DeviceId("node"),
                hw_location="node",
                slots=(slot,),
                memory_size=memory_size,
                processing_units=0 if memory_size else amount,
            )
        ]


class CoresPlugin(NodePlugin):
    """Serves the cores of the node that other pods leave."""

    key: ClassVar[DeviceName] = DeviceName("cpu")
    display = CPUPlugin.display

    async def list_devices(self) -> Sequence[ComputeDevice]:
        return self._pool(type(self).facts().cores)

    async def configure(self, workload: Workload, device_alloc: DeviceAllocation) -> WorkloadConfig:
        """Limits the processor time of a workload to that of its cores."""
        total_cores = device_alloc.total(self.display.slot_name)
        return WorkloadConfig(cpu_limit=float(total_cores) if total_cores else None)


class NodeMemoryPlugin(NodePlugin):
    """Serves the memory of the node that other pods leave."""

    key: ClassVar[DeviceName] = DeviceName("mem")
    display = MemoryPlugin.display

    async def list_devices(self) -> Sequence[ComputeDevice]:
        size = type(self).facts().memory_bytes
        return self._pool(size, size)

    async def configure(self, workload: Workload, device_alloc: DeviceAllocation) -> WorkloadConfig:
        """Limits the memory of a workload."""
        total_bytes = device_alloc.total(self.display.slot_name)
        return WorkloadConfig(memory_limit_bytes=int(total_bytes) if total_bytes else None)


class DriverPlugin(NodePlugin):
    """Serves the devices of a driver of the cluster. The ResourceClaim of a session names the devices of its plan."""

    strategy = AllocationStrategy.EVENLY
    driver: ClassVar[str]
    driver_settings: ClassVar[DriverSettings]

    async def list_devices(self) -> Sequence[ComputeDevice]:
        return type(self).facts().devices.get(self.driver, ())

    async def configure(self, workload: Workload, device_alloc: DeviceAllocation) -> WorkloadConfig:
        """Returns a config with the names by which the runtime of pods claims devices: ``DRIVER/ATTRIBUTE=VALUE``."""
        amount_of_device = device_alloc.slots.get(self.display.slot_name, {})
        attribute = self.driver_settings.id_attribute
        return WorkloadConfig(
            devices=tuple(
                DeviceMapping(source="", cdi_name=f"{self.driver}/{attribute}={device_id}")
                for device_id in sorted(amount_of_device)
            )
        )

    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        amount_of_device = device_alloc.slots.get(self.display.slot_name, {})
        models = {device.device_id: device.model_name for device in await self.list_devices()}
        return [
            AttachedDevice(
                device_id=device_id, model_name=models.get(device_id) or self.driver, data={"proportion": 1.0}
            )
            for device_id in amount_of_device
        ]


class CountedPlugin(NodePlugin):
    """Serves devices that a device plugin counts. A session's container requests as many of them as its plan has."""

    strategy = AllocationStrategy.EVENLY
    resource: ClassVar[str]

    def alloc_map_spec(self) -> AllocMapSpec:
        """Returns a discrete alloc map of devices without identity, since the kubelet chooses the devices."""
        return AllocMapSpec(kind="discrete", strategy=self.strategy, anonymous=True)

    async def list_devices(self) -> Sequence[ComputeDevice]:
        return type(self).facts().devices.get(self.resource, ())

    async def configure(self, workload: Workload, device_alloc: DeviceAllocation) -> WorkloadConfig:
        """Returns a config with the names by which the runtime of pods counts the devices: ``COUNTED.RESOURCE=ID``."""
        amount_of_device = device_alloc.slots.get(self.display.slot_name, {})
        devices = [
            DeviceMapping(source="", cdi_name=f"COUNTED.{self.resource}={device_id}")
            for device_id in sorted(amount_of_device)
        ]
        return WorkloadConfig(devices=tuple(devices))

    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        amount_of_device = device_alloc.slots.get(self.display.slot_name, {})
        models = {device.device_id: device.model_name for device in await self.list_devices()}
        return [
            AttachedDevice(device_id=device_id, model_name=models.get(device_id) or self.resource)
            for device_id in amount_of_device
        ]


def node_plugins(facts: ReadFacts, settings: KubernetesSettings) -> list[PluginSource]:
    """Returns the plugins of one node."""
    sources = [
        PluginSource("cpu", partial(_make_plugin_class, CoresPlugin, facts=staticmethod(facts))),
        PluginSource("mem", partial(_make_plugin_class, NodeMemoryPlugin, facts=staticmethod(facts))),
    ]
    for driver, driver_settings in settings.drivers.items():
        key = device_name_of(driver, driver_settings)
        display = SlotDisplay(
            slot_name=slot_of(driver, driver_settings),
            slot_type=SlotType.COUNT,
            human_readable_name=key,
            description=f"Devices of {driver}",
            display_unit=key,
        )
        class_fields = {"facts": staticmethod(facts), "key": key, "driver": driver, "driver_settings": driver_settings}
        sources.append(PluginSource(key, partial(_make_plugin_class, DriverPlugin, display=display, **class_fields)))
    for resource, counted_settings in settings.counted.items():
        key = device_name_of(resource, counted_settings)
        display = SlotDisplay(
            slot_name=slot_of(resource, counted_settings),
            slot_type=SlotType.COUNT,
            human_readable_name=key,
            description=f"Devices of {resource}, which the kubelet chooses",
            display_unit=key,
        )
        class_fields = {"facts": staticmethod(facts), "key": key, "resource": resource}
        sources.append(PluginSource(key, partial(_make_plugin_class, CountedPlugin, display=display, **class_fields)))
    return sources


def _make_plugin_class(base: type[NodePlugin], **class_fields: object) -> type[AbstractComputePlugin]:
    return type(base.__name__, (base,), class_fields)
