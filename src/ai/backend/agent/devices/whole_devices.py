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
    parts_of: dict[DeviceId, list[ComputeDevice]] = {}
    for device in devices:
        if device.parent_id is not None:
            parts_of.setdefault(device.parent_id, []).append(device)
    counted: set[DeviceId] = set()
    result = []
    for device in devices:
        whole = whole_devices.get(device.device_id)
        parts = parts_of.get(device.device_id, ())
        if whole is not None and parts and device.parent_id is None:
            joinable = [part for part in parts if is_joinable(part)]
            offered = _counted_device(device, whole, joinable, [part for part in parts if part not in joinable])
            if offered is not None and _has_slots_of(device, whole):
                device = offered
                counted.update(part.device_id for part in joinable)
        result.append(device)
    return tuple(device for device in result if device.device_id not in counted)


def _counted_device(
    device: ComputeDevice, whole: ComputeDevice, joinable: Sequence[ComputeDevice], others: Sequence[ComputeDevice]
) -> ComputeDevice | None:
    """Returns a device as if only ``others`` of its partitions were cut. Returns None if a partition's cost is
    unknown.
    """
    cost_of_slot = {slot.slot_name: slot.counters for slot in whole.slots if slot.counters}
    used: dict[str, int] = {}
    left = dict(whole.counters)
    for parts, sums in ((joinable, used), (others, left)):
        for part in parts:
            cost = next((cost_of_slot[slot.slot_name] for slot in part.slots if slot.slot_name in cost_of_slot), None)
            if cost is None:
                return None
            for counter, amount in cost:
                sums[counter] = sums.get(counter, 0) + (amount if sums is used else -amount)
    return replace(
        device,
        # What exists fits, whatever the plugin said before it was cut.
        counters=tuple((counter, max(0, amount, used.get(counter, 0))) for counter, amount in left.items()),
        slots=tuple(replace(slot, amount=Decimal(0)) if others and not slot.counters else slot for slot in whole.slots),
        partition_ids=tuple(sorted(part.device_id for part in joinable)),
    )


def _has_slots_of(device: ComputeDevice, whole: ComputeDevice) -> bool:
    """Returns True if a cut device still lists the same slots as before it was cut. A change of settings can change
    them.
    """
    names, whole_names = ({slot.slot_name for slot in each.slots if not slot.counters} for each in (device, whole))
    return not names or names == whole_names


class WholeDevices:
    """Stores the slots that each device offers while it is not cut. They survive a restart of the agent, when the
    device may be cut already.
    """

    def __init__(self, store: NamedValueStore | None = None) -> None:
        self._store = store
        self._devices: dict[str, dict[DeviceId, ComputeDevice]] = {}
        for name, value in store.items().items() if store is not None else ():
            try:
                plugin_key, device_id = msgspec.json.decode(name, type=tuple[str, DeviceId])
                device = msgspec.json.decode(value, type=ComputeDevice)
            except msgspec.MsgspecError as e:
                log.error("what the device %s offers as a whole cannot be read: %s", name, e)
                continue
            self._devices.setdefault(plugin_key, {})[device_id] = device

    def of(self, plugin_key: str) -> Mapping[DeviceId, ComputeDevice]:
        """Returns the devices of a plugin as they were before they were cut."""
        return self._devices.get(plugin_key, {})

    def update(self, plugin_key: str, listed: Sequence[ComputeDevice]) -> None:
        """Stores the listed devices that have no partitions."""
        stored_devices = self._devices.setdefault(plugin_key, {})
        cut_ids = {device.parent_id for device in listed}
        listed_ids = {device.device_id for device in listed}
        for device in listed:
            is_whole = device.partitioning_support and device.parent_id is None and device.device_id not in cut_ids
            if is_whole and stored_devices.get(device.device_id) != (whole := _without_state(device)):
                stored_devices[device.device_id] = whole
                self._write(plugin_key, device.device_id, whole)
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
