"""Counts the partitions of a device as used slots of the device that it was before it was cut (decision 0620)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

import msgspec

from ai.backend.agent.devices.cordons import NamedValueStore
from ai.backend.common.devices import ComputeDevice, DeviceHealth
from ai.backend.common.ids import DeviceId
from ai.backend.common.structs import replace

log = logging.getLogger(__name__)
_MAX_WHOLE_DEVICES = 4096


def with_partitions_counted(
    devices: Sequence[ComputeDevice],
    whole_devices: Mapping[DeviceId, ComputeDevice],
    is_joinable: Callable[[ComputeDevice], bool],
) -> tuple[ComputeDevice, ...]:
    """Returns devices without their partitions, each device with the slots that it offered before it was cut.
    ``whole_devices``: the devices before they were cut. A device that is not in ``whole_devices`` is left as it is,
    beside its partitions.

    A partition that a kernel holds, or that may be joined (``is_joinable``), is counted when a kernel holds it. Any
    other one stays a device of its own: its room is missing, and its device is not offered as a whole.
    """
    partitions_of_device: dict[DeviceId, list[ComputeDevice]] = {}
    for device in devices:
        if device.parent_id is not None:
            partitions_of_device.setdefault(device.parent_id, []).append(device)
    counted_ids: set[DeviceId] = set()
    result = []
    for device in devices:
        whole_device = whole_devices.get(device.device_id)
        partitions = partitions_of_device.get(device.device_id, ())
        if whole_device is not None and partitions and device.parent_id is None:
            joinable_partitions = [partition for partition in partitions if is_joinable(partition)]
            counted_device = _counted_device(
                device,
                whole_device,
                joinable_partitions,
                [partition for partition in partitions if partition not in joinable_partitions],
            )
            if counted_device is not None and _has_slots_of(device, whole_device):
                device = counted_device
                counted_ids.update(partition.device_id for partition in joinable_partitions)
        result.append(device)
    return tuple(device for device in result if device.device_id not in counted_ids)


def _counted_device(
    device: ComputeDevice,
    whole_device: ComputeDevice,
    joinable_partitions: Sequence[ComputeDevice],
    other_partitions: Sequence[ComputeDevice],
) -> ComputeDevice | None:
    """Returns a device with the counters that are left if only ``other_partitions`` of its partitions were cut.

    Returns None if a partition's cost is unknown.
    """
    cost_of_slot = {slot.slot_name: slot.counters for slot in whole_device.slots if slot.counters}
    used_amounts: dict[str, int] = {}
    free_amounts = dict(whole_device.counters)
    for partitions, amounts in ((joinable_partitions, used_amounts), (other_partitions, free_amounts)):
        for partition in partitions:
            slot_cost = next(
                (cost_of_slot[slot.slot_name] for slot in partition.slots if slot.slot_name in cost_of_slot), None
            )
            if slot_cost is None:
                return None
            for counter, amount in slot_cost:
                amounts[counter] = amounts.get(counter, 0) + (amount if amounts is used_amounts else -amount)
    return replace(
        device,
        # What exists fits, whatever the plugin said before it was cut.
        counters=tuple(
            (counter, max(0, amount, used_amounts.get(counter, 0))) for counter, amount in free_amounts.items()
        ),
        slots=tuple(
            replace(slot, amount=Decimal(0)) if other_partitions and not slot.counters else slot
            for slot in whole_device.slots
        ),
        partition_ids=tuple(sorted(partition.device_id for partition in joinable_partitions)),
    )


def _has_slots_of(device: ComputeDevice, whole_device: ComputeDevice) -> bool:
    """Returns True if a cut device still lists the same slots as before it was cut. A change of settings can change
    them.
    """
    names, whole_names = (
        {slot.slot_name for slot in compared_device.slots if not slot.counters}
        for compared_device in (device, whole_device)
    )
    return not names or names == whole_names


class WholeDevices:
    """Stores each device as its plugin listed it before it was cut, with the slots that it then offered.

    The stored devices survive a restart of the agent, when a device may be cut already.
    """

    def __init__(self, store: NamedValueStore | None = None) -> None:
        self._store = store
        self._devices: dict[str, dict[DeviceId, ComputeDevice]] = {}
        for name, value in store.items().items() if store is not None else ():
            try:
                plugin_key, device_id = msgspec.json.decode(name, type=tuple[str, DeviceId])
                device = msgspec.json.decode(value, type=ComputeDevice)
            except (msgspec.MsgspecError, UnicodeDecodeError) as e:
                log.error("what the device %s offers as a whole cannot be read: %s", name, e)
                continue
            self._devices.setdefault(plugin_key, {})[device_id] = device

    def of(self, plugin_key: str) -> Mapping[DeviceId, ComputeDevice]:
        """Returns the devices of a plugin as they were before they were cut."""
        return self._devices.get(plugin_key, {})

    def update(self, plugin_key: str, listed_devices: Sequence[ComputeDevice]) -> None:
        """Stores the listed devices that have no partitions."""
        stored_devices = self._devices.setdefault(plugin_key, {})
        cut_ids = {device.parent_id for device in listed_devices}
        listed_ids = {device.device_id for device in listed_devices}
        for device in listed_devices:
            is_whole = device.partitioning_support and device.parent_id is None and device.device_id not in cut_ids
            if is_whole and stored_devices.get(device.device_id) != (whole_device := _without_state(device)):
                stored_devices[device.device_id] = whole_device
                self._write(plugin_key, device.device_id, whole_device)
        for device_id in stored_devices.keys() - listed_ids if len(stored_devices) > _MAX_WHOLE_DEVICES else ():
            del stored_devices[device_id]
            self._write(plugin_key, device_id, None)

    def _write(self, plugin_key: str, device_id: DeviceId, device: ComputeDevice | None) -> None:
        if self._store is None:
            return
        name = msgspec.json.encode((plugin_key, device_id)).decode()
        try:
            if device is None:
                self._store.delete(name)
            else:
                self._store.put(name, msgspec.json.encode(device))
        except OSError as e:
            log.error("what the device %s offers as a whole is not stored: %s", device_id, e)


def _without_state(device: ComputeDevice) -> ComputeDevice:
    return replace(device, health=DeviceHealth.HEALTHY, health_reason="", variant_properties=(), links=())
