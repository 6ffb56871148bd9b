"""Cuts partitions when a kernel gets them, and joins them again when they have been idle (decision 0491).

Of the plugins that ``agent.partition-on-demand`` names, each device offers what it can still be cut into: slots whose
``counters`` say what a partition takes of the device.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, cast

from ai.backend.common.devices import ComputeDevice, DeviceHealth, DeviceSlot, SlotDisplay
from ai.backend.common.errors import BackendError, Conflict, CreationDeferred, NotFound
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.common.states import SlotType
from ai.backend.common.wire.agent import OperateDevice
from ai.backend.plugin.accelerator import Partitionable, PartitionProfile

if TYPE_CHECKING:
    from ai.backend.agent.devices.inventory import Inventory
    from ai.backend.agent.devices.operations import DeviceOperations
    from ai.backend.agent.devices.plugins import PluginSet
    from ai.backend.pluginhost.handle import PluginHandle

log = logging.getLogger(__name__)
_GROUP = "partitions"


def with_uncut_partitions(
    device: ComputeDevice, profiles: Sequence[PartitionProfile], displays: Sequence[SlotDisplay]
) -> ComputeDevice:
    """Returns a device that also offers the partitions that it can still be cut into.

    What is left of its memory, and of its slices where the plugin tells them, is at least what the most of one kind
    take. A device whose slots do not exclude each other is left as it is: a part of it would have to exclude all.
    """
    cuttable: dict[SlotName, PartitionProfile] = {}
    for profile in profiles:
        if profile.available > 0 and profile.memory_size > 0 and profile.amount == 1:
            cuttable.setdefault(profile.slot_name, profile)
    groups = {slot.exclusive_group for slot in device.slots}
    names = {slot.slot_name for slot in device.slots}
    if not cuttable or len(groups) > 1 or (groups == {None} and len(device.slots) > 1) or names & cuttable.keys():
        return device
    group = next(iter(groups), None) or _GROUP
    memory = max(profile.available * profile.memory_size for profile in cuttable.values())
    slices = max(profile.available * profile.slices for profile in cuttable.values())
    slot_types = {display.slot_name: display.slot_type for display in displays}
    uncut = [
        DeviceSlot(
            slot_name=slot_name,
            slot_type=slot_types.get(slot_name, SlotType.COUNT),
            amount=Decimal(profile.available),
            exclusive_group=group,
            counters=(("memory", profile.memory_size), *((("slices", profile.slices),) if profile.slices else ())),
        )
        for slot_name, profile in cuttable.items()
    ]
    whole = [replace(slot, exclusive_group=group) for slot in device.slots]
    return replace(device, slots=(*whole, *uncut), counters=(("memory", memory), ("slices", slices)))


async def list_uncut_partitions(
    handle: PluginHandle, devices: Sequence[ComputeDevice], displays: Sequence[SlotDisplay]
) -> tuple[ComputeDevice, ...]:
    """Returns a plugin's devices with what each can still be cut into. Raises PluginError."""
    if not handle.plugin.capabilities.partitionable:
        return tuple(devices)
    result = []
    for device in devices:
        if device.partitioning_support and device.parent_id is None:
            device = with_uncut_partitions(device, await _profiles_of(handle, device.device_id), displays)
        result.append(device)
    return tuple(result)


async def _profiles_of(handle: PluginHandle, device_id: DeviceId) -> Sequence[PartitionProfile]:
    try:
        return await handle.call(
            "partition_profiles", lambda plugin: cast("Partitionable", plugin).partition_profiles(device_id)
        )
    except NotFound:
        return ()


class Partitioner:
    """Cuts devices for kernels and joins idle partitions, one change at a time for each plugin."""

    def __init__(
        self,
        plugins: PluginSet,
        inventory: Inventory,
        operations: DeviceOperations,
        *,
        names: Sequence[str],
        idle_s: float | None,
        clock: Callable[[], float],
    ) -> None:
        """``names``: the plugins. ``idle_s``: after how long an idle partition is joined; None: never."""
        self._plugins = plugins
        self._inventory = inventory
        self._operations = operations
        self._names = names
        self._idle_s = idle_s
        self._clock = clock
        self._idle_since: dict[tuple[str, DeviceId], float] = {}

    async def cut(self, kernel_id: str) -> bool:
        """Cuts what a kernel holds of devices that are not cut yet; returns whether there was anything.

        Raises CreationDeferred if a plugin cannot do what it offered, with its reason.
        """
        is_changed = False
        while (uncut := self._inventory.uncut(kernel_id)) is not None:
            plugin_key, slot_name, device_id = uncut
            is_changed = True
            try:
                handle = self._plugins.get(plugin_key)
                async with self._operations.lock_of(plugin_key):
                    await self._inventory.replace_uncut(
                        kernel_id, handle, slot_name, device_id, self._cutting(handle, device_id, slot_name)
                    )
            except BackendError as e:
                raise CreationDeferred(f"{device_id} was not cut for {slot_name}: {e.message}") from e
        return is_changed

    def _cutting(
        self, handle: PluginHandle, device_id: DeviceId, slot_name: SlotName
    ) -> Callable[[], Awaitable[DeviceId]]:
        async def create() -> DeviceId:
            profiles = await _profiles_of(handle, device_id)
            names = [profile.name for profile in profiles if profile.slot_name == slot_name and profile.available > 0]
            if not names:
                raise Conflict(f"the device {device_id} has no room for another {slot_name}")
            return await handle.call(
                "create_partition",
                lambda plugin: cast("Partitionable", plugin).create_partition(device_id, names[0]),
            )

        return create

    async def join_idle(self) -> None:
        """Joins the partitions that no kernel has held for ``idle_s``. A failure is logged, and tried again later."""
        if self._idle_s is None:
            return
        now, idle_since = self._clock(), {}
        for key in self._names:
            kind = self._inventory.kinds.get(key)
            for device in kind.devices if kind is not None else ():
                # One that is not healthy is worked on, cordoned, or failed, which somebody will look into.
                is_usable = device.parent_id is not None and device.health is DeviceHealth.HEALTHY
                if is_usable and not self._inventory.holders(key, device.device_id):
                    idle_since[key, device.device_id] = self._idle_since.get((key, device.device_id), now)
        self._idle_since = idle_since
        due = [entry for entry, since in idle_since.items() if now - since >= self._idle_s]
        for key, device_id in due:
            try:
                await self._operations.operate(
                    OperateDevice(device_name=key, device_id=device_id, action="unpartition")
                )
            except BackendError as e:
                log.info("the idle partition %s of %s is not joined: %s", device_id, key, e.message)
                self._idle_since[key, device_id] = now
