"""Simulates devices of a node that are cut into partitions and joined again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar

from ai.backend.common.devices import (
    AllocMapSpec,
    ComputeDevice,
    DeviceHealth,
    DeviceSlot,
    PartitioningCapability,
    SlotDisplay,
)
from ai.backend.common.errors import Conflict, NotFound
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.common.states import SlotType
from ai.backend.common.structs import replace
from ai.backend.core.allocation.stock_maps import build_alloc_map
from ai.backend.plugin.accelerator import AbstractAllocMap, PartitionProfile, PluginCapabilities
from ai.backend.simulator.node import SimulatedPlugin

PLUGIN_KEY = "gpu"
WHOLE_SLOT = "gpu.device"
UNITS_BY_SLOT: Mapping[str, int] = {"gpu.1g": 1, "gpu.2g": 2, WHOLE_SLOT: 4}
"""Slot -> the amount of a device's memory that the slot takes."""
_DEVICE_IDS = ("g0", "g1")
_SPEC = AllocMapSpec(kind="discrete")


class SimulatedGpu(SimulatedPlugin):
    """Simulates a node's two GPUs, which can be cut into halves and quarters.

    The partitions outlive the agents of the node.
    """

    capabilities: ClassVar[PluginCapabilities] = PluginCapabilities(partitionable=True)

    def _devices(self) -> list[ComputeDevice]:
        devices: list[ComputeDevice] = []
        for device_id in _DEVICE_IDS:
            slot_by_partition = {
                name: slot for name, (parent, slot) in self.node.partitions.items() if parent == device_id
            }
            device = ComputeDevice(
                device_name=self.key,
                device_id=DeviceId(device_id),
                hw_location="root",
                memory_size=UNITS_BY_SLOT[WHOLE_SLOT],
                partitioning_support=(PartitioningCapability(max_partitions=UNITS_BY_SLOT[WHOLE_SLOT]),),
                slots=(_device_slot(WHOLE_SLOT, amount=0 if slot_by_partition else 1),),
                health=DeviceHealth.UNHEALTHY
                if (PLUGIN_KEY, device_id) in self.node.unhealthy
                else DeviceHealth.HEALTHY,
            )
            devices.append(device)
            devices += [
                replace(
                    device,
                    device_id=DeviceId(name),
                    parent_id=device.device_id,
                    memory_size=UNITS_BY_SLOT[slot],
                    partitioning_support=(),
                    slots=(_device_slot(slot),),
                )
                for name, slot in sorted(slot_by_partition.items())
            ]
        return devices

    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        return [SlotDisplay(slot_name=SlotName(slot), slot_type=_slot_type_of(slot)) for slot in UNITS_BY_SLOT]

    async def available_slots(self) -> Mapping[SlotName, Any]:
        return {}

    def alloc_map_spec(self) -> AllocMapSpec | None:
        return _SPEC

    async def create_alloc_map(self) -> AbstractAllocMap:
        return build_alloc_map(_SPEC, self._devices())

    async def partition_profiles(self, device_id: DeviceId) -> Sequence[PartitionProfile]:
        if device_id not in _DEVICE_IDS:
            raise NotFound(f"{device_id} cannot be cut")
        free_units = self._free_units(device_id)
        return [
            PartitionProfile(name=slot, slot_name=SlotName(slot), memory_size=size, available=free_units // size)
            for slot, size in UNITS_BY_SLOT.items()
            if slot != WHOLE_SLOT
        ]

    def _free_units(self, device_id: DeviceId) -> int:
        return UNITS_BY_SLOT[WHOLE_SLOT] - sum(
            UNITS_BY_SLOT[slot] for parent, slot in self.node.partitions.values() if parent == device_id
        )

    async def create_partition(self, device_id: DeviceId, profile: str) -> DeviceId:
        if await self._misbehave("create_partition"):
            return DeviceId("of-nobody")
        if self.node.holders_of(device_id):
            self.node.broken.append(f"{self.node.name} cuts {device_id}, which a workload has")
        if self._free_units(device_id) < UNITS_BY_SLOT[profile]:
            raise Conflict(f"{device_id} has no room for another {profile}")
        partition_names = (f"{device_id}/{number}" for number in range(64))
        name = DeviceId(next(name for name in partition_names if name not in self.node.partitions))
        self.node.partitions[name] = (device_id, profile)
        return name

    async def destroy_partition(self, partition_id: DeviceId) -> None:
        await self._misbehave("destroy_partition")
        if self.node.holders_of(partition_id):
            self.node.broken.append(f"{self.node.name} joins {partition_id}, which a workload has")
        self.node.broken += [
            f"{self.node.name} joins {partition_id}, which the claim {claim} keeps"
            for claim in self.node.claims_holding(partition_id)
        ]
        self.node.partitions.pop(partition_id, None)


def _slot_type_of(slot: str) -> SlotType:
    return SlotType.COUNT if slot == WHOLE_SLOT else SlotType.UNIQUE


def _device_slot(slot: str, amount: int = 1) -> DeviceSlot:
    return DeviceSlot(slot_name=SlotName(slot), slot_type=_slot_type_of(slot), amount=Decimal(amount))
