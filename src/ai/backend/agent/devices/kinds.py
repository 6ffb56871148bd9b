"""Holds the devices and slots of one accelerator plugin for the inventory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from decimal import Decimal

from ai.backend.common.devices import (
    KEY,
    TAINT,
    AllocMapSpec,
    ComputeDevice,
    DeviceAllocation,
    SlotDisplay,
    VariantNamespace,
    VariantProperty,
)
from ai.backend.common.errors import NotFound
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.common.structs import replace


@dataclass(slots=True, kw_only=True)
class DeviceKind:
    """Holds the devices and slots of one accelerator plugin.

    ``listed_devices`` are as the plugin listed them at ``queried_at``; ``devices_with_health`` have the health that
    counts, also if they are withheld, and ``devices`` are what is offered, without partitions that are counted at their
    device. Allocation gives the same results with equal values.
    """

    devices: tuple[ComputeDevice, ...] = ()
    displays: tuple[SlotDisplay, ...] = ()
    slots: dict[SlotName, Decimal] = field(default_factory=dict)
    alloc_map_spec: AllocMapSpec | None = None
    namespaces: tuple[VariantNamespace, ...] = ()
    listed_devices: tuple[ComputeDevice, ...] = field(default=(), compare=False)
    devices_with_health: tuple[ComputeDevice, ...] = field(default=(), compare=False)
    queried_at: float = field(default=0.0, compare=False)
    info: dict[str, str] | None = field(default=None, compare=False)

    @property
    def slot_names(self) -> frozenset[SlotName]:
        device_slot_names = (slot.slot_name for device in self.devices for slot in device.slots)
        return frozenset([*self.slots, *device_slot_names, *(display.slot_name for display in self.displays)])

    def allocation_of_whole(self, device_ids: Collection[str]) -> DeviceAllocation:
        """Returns an allocation of whole devices, healthy or not, for hooks that show the devices. The devices are not
        taken.

        Raises NotFound for a device that the plugin does not list.
        """
        listed_devices = {str(device.device_id): device for device in self.listed_devices}
        slots: dict[SlotName, dict[DeviceId, Decimal]] = {}
        for device_id in device_ids:
            device = listed_devices.get(device_id)
            offered_slots = [slot for slot in device.slots if not slot.counters] if device is not None else []
            if device is None or not offered_slots:
                raise NotFound(f"the plugin lists no device {device_id[:128]!r} that sessions can see")
            slot = max(offered_slots, key=lambda slot: slot.amount)
            slots.setdefault(slot.slot_name, {})[device.device_id] = slot.amount or slot.quantum
        return DeviceAllocation(slots=slots)


def with_taint(device: ComputeDevice, key: str) -> ComputeDevice:
    """Returns the device with a taint of this key."""
    taint = VariantProperty(namespace=TAINT, feature=KEY, value=key)
    return replace(device, variant_properties=(*device.variant_properties, taint))
