"""Adds to devices the slots of the partitions that they can still be cut into."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import cast

from ai.backend.common.devices import ComputeDevice, DeviceSlot, SlotDisplay
from ai.backend.common.errors import NotFound
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.common.states import SlotType
from ai.backend.common.structs import replace
from ai.backend.plugin.accelerator import Partitionable, PartitionProfile
from ai.backend.pluginhost.handle import PluginHandle

_GROUP = "partitions"


def with_uncut_partitions(
    device: ComputeDevice, profiles: Sequence[PartitionProfile], displays: Sequence[SlotDisplay]
) -> ComputeDevice:
    """Returns a device with additional slots for the partitions that it can still be cut into.

    What is left of its memory, and of its slices where the plugin tells them, is at least what the most of one kind
    take. A device whose slots do not exclude each other is left as it is: a part of it would have to exclude all.
    """
    profile_of_slot: dict[SlotName, PartitionProfile] = {}
    for profile in profiles:
        if profile.available > 0 and profile.memory_size > 0 and profile.amount == 1:
            profile_of_slot.setdefault(profile.slot_name, profile)
    exclusive_groups = {slot.exclusive_group for slot in device.slots}
    slot_names = {slot.slot_name for slot in device.slots}
    if (
        not profile_of_slot
        or len(exclusive_groups) > 1
        or (exclusive_groups == {None} and len(device.slots) > 1)
        or slot_names & profile_of_slot.keys()
    ):
        return device
    exclusive_group = next(iter(exclusive_groups), None) or _GROUP
    memory_bytes = max(profile.available * profile.memory_size for profile in profile_of_slot.values())
    slice_count = max(profile.available * profile.slices for profile in profile_of_slot.values())
    slot_types = {display.slot_name: display.slot_type for display in displays}
    partition_slots = [
        DeviceSlot(
            slot_name=slot_name,
            slot_type=slot_types.get(slot_name, SlotType.COUNT),
            amount=Decimal(profile.available),
            exclusive_group=exclusive_group,
            counters=(("memory", profile.memory_size), *((("slices", profile.slices),) if profile.slices else ())),
        )
        for slot_name, profile in profile_of_slot.items()
    ]
    whole_device_slots = [replace(slot, exclusive_group=exclusive_group) for slot in device.slots]
    return replace(
        device,
        slots=(*whole_device_slots, *partition_slots),
        counters=(("memory", memory_bytes), ("slices", slice_count)),
    )


async def list_uncut_partitions(
    handle: PluginHandle, devices: Sequence[ComputeDevice], displays: Sequence[SlotDisplay]
) -> tuple[ComputeDevice, ...]:
    """Returns a plugin's devices with additional slots for the partitions that they can still be cut into. Raises
    PluginError.
    """
    if not handle.plugin.capabilities.partitionable:
        return tuple(devices)
    result = []
    for device in devices:
        if device.partitioning_support and device.parent_id is None:
            device = with_uncut_partitions(device, await profiles_of(handle, device.device_id), displays)
        result.append(device)
    return tuple(result)


async def profiles_of(handle: PluginHandle, device_id: DeviceId) -> Sequence[PartitionProfile]:
    """Returns the partition profiles of a device, empty for a device that cannot be cut. Raises PluginError."""
    try:
        return await handle.call(
            "partition_profiles", lambda plugin: cast("Partitionable", plugin).partition_profiles(device_id)
        )
    except NotFound:
        return ()
