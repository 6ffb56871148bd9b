"""Decides which devices may serve several workloads of one owner, at once or in turn."""

from __future__ import annotations

from collections.abc import Iterable

from ai.backend.common.devices import DeviceAllocation
from ai.backend.core.allocation.node import PluginDevices


def anonymous_slots(plugins: Iterable[PluginDevices], slot_names: Iterable[str]) -> list[str]:
    """Returns the slots whose devices have no identity, so that a later workload of a claim would get other devices."""
    unidentified = {
        slot.slot_name
        for plugin in plugins
        if plugin.alloc_map is not None and plugin.alloc_map.anonymous
        for device in plugin.devices
        for slot in device.slots
    }
    return sorted(name for name in slot_names if name in unidentified)


def is_shareable(plugins: Iterable[PluginDevices], allocation: DeviceAllocation) -> bool:
    """Returns True if each plugin lets workloads share its devices, and each device is allocated as a whole.

    The number of workloads that share a part of a device must not concern those who hold the rest.
    """
    whole_amounts = {
        (slot.slot_name, device.device_id): slot.amount
        for plugin in plugins
        if plugin.alloc_map is not None and plugin.alloc_map.shareable
        for device in plugin.devices
        for slot in device.slots
    }
    quantities = [
        (slot_name, device_id, quantity)
        for slot_name, quantity_of_device in allocation.slots.items()
        for device_id, quantity in quantity_of_device.items()
    ]
    return bool(quantities) and all(
        whole_amounts.get((slot_name, device_id)) == quantity for slot_name, device_id, quantity in quantities
    )
