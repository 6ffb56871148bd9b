"""Devices for tests, short to write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

from ai.backend.common.devices import (
    ComputeDevice,
    DeviceAllocation,
    DeviceHealth,
    DeviceLink,
    DeviceSlot,
    LinkKind,
    VariantProperty,
)
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.states import SlotType


def slot(
    name: str, amount: str | int = 1, quantum: str | int = 1, group: str | None = None, kind: SlotType = SlotType.COUNT
) -> DeviceSlot:
    return DeviceSlot(
        slot_name=SlotName(name),
        slot_type=kind,
        amount=Decimal(amount),
        quantum=Decimal(quantum),
        exclusive_group=group,
    )


def device(
    device_id: str,
    *slots: DeviceSlot,
    numa: int | None = None,
    healthy: bool = True,
    kind: str = "x",
    links: Mapping[str, tuple[str, float | None]] | None = None,
    variants: Sequence[str] = (),
) -> ComputeDevice:
    """``links`` maps the id of a peer to (kind, bandwidth in GiB/s)."""
    return ComputeDevice(
        device_name=DeviceName(kind),
        device_id=DeviceId(device_id),
        hw_location="root",
        slots=slots,
        numa_node=numa,
        health=DeviceHealth.HEALTHY if healthy else DeviceHealth.UNHEALTHY,
        links=tuple(
            DeviceLink(peer=DeviceId(peer), kind=LinkKind(link), bandwidth_gib_s=bandwidth)
            for peer, (link, bandwidth) in (links or {}).items()
        ),
        variant_properties=tuple(map(VariantProperty.parse, variants)),
    )


def want(**slots: str | int) -> dict[SlotName, Decimal]:
    """``want(x_device=2)`` asks for 2 of ``x.device``."""
    return {SlotName(name.replace("_", ".")): Decimal(quantity) for name, quantity in slots.items()}


def alloc(slots: Mapping[str, Mapping[str, str | int]]) -> DeviceAllocation:
    return DeviceAllocation(
        slots={SlotName(s): {DeviceId(d): Decimal(q) for d, q in per.items()} for s, per in slots.items()}
    )


def plain(allocation: DeviceAllocation) -> dict[str, dict[str, str]]:
    """An allocation as text, for comparing with what a reader writes."""
    return {s: {d: f"{q:f}" for d, q in per.items()} for s, per in allocation.slots.items()}
