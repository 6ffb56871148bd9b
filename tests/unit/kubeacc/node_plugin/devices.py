"""Devices of tests, and a node plugin in memory: mock accelerators, a checkpoint on disk, no kubelet."""

from __future__ import annotations

from decimal import Decimal

from ai.backend.common.devices import ComputeDevice, DeviceHealth, DeviceLink, DeviceSlot, LinkKind
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.states import SlotType
from ai.backend.common.structs import replace


def device(name: str, *, peers: tuple[str, ...] = (), numa_node: int | None = None, amount: int = 1) -> ComputeDevice:
    """A device with one slot, linked directly to its peers."""
    return ComputeDevice(
        device_name=DeviceName("mock"),
        device_id=DeviceId(name),
        hw_location="0000:3B:00.0",
        model_name="Mock H100",
        memory_size=80 << 30,
        numa_node=numa_node,
        slots=(DeviceSlot(slot_name=SlotName("mock.device"), slot_type=SlotType.COUNT, amount=Decimal(amount)),),
        links=tuple(DeviceLink(peer=DeviceId(peer), kind=LinkKind.DIRECT, bandwidth_gib_s=25.0) for peer in peers),
    )


def failed(one: ComputeDevice, reason: str) -> ComputeDevice:
    return replace(one, health=DeviceHealth.UNHEALTHY, health_reason=reason)
