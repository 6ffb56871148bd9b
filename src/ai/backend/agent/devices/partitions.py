"""Cuts devices into partitions for kernels, and joins partitions that are idle or whose room a kernel needs (decisions
0491 and 0620).

Of the plugins that ``agent.partition-on-demand`` names, each device offers what it can be cut into: slots whose
``counters`` say what a partition takes of the device. Partitions that exist are counted at their device: one that no
kernel holds takes nothing of it, since it is joined when its room is needed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import cast

from ai.backend.agent.devices.cut_devices import CutDevices
from ai.backend.agent.devices.inventory import Inventory
from ai.backend.agent.devices.operations import DeviceOperations
from ai.backend.agent.devices.partition_profiles import profiles_of
from ai.backend.agent.devices.plugins import PluginSet
from ai.backend.common.devices import ComputeDevice
from ai.backend.common.errors import BackendError, Conflict, CreationDeferred
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.common.wire.agent import OperateDevice
from ai.backend.plugin.accelerator import Partitionable
from ai.backend.pluginhost.handle import PluginHandle

log = logging.getLogger(__name__)


def _offers(device: ComputeDevice, slot_name: SlotName) -> bool:
    return any(slot.slot_name == slot_name for slot in device.slots)


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
        read_kept_ids: Callable[[], Awaitable[Collection[DeviceId]]],
    ) -> None:
        """Stores the settings of partitioning and the services by which devices are cut and joined.

        ``names``: the plugins. ``idle_s``: after how long an idle partition is joined; None: never. ``read_kept_ids``
        returns the devices of claims, and raises BackendError if they are not known; then no partition is joined or
        reused.
        """
        self._plugins = plugins
        self._inventory = inventory
        self._cut_devices = CutDevices(inventory)
        self._operations = operations
        self._names = names
        self._idle_s = idle_s
        self._clock = clock
        self._kept = read_kept_ids
        self._idle_since: dict[tuple[str, DeviceId], float] = {}

    async def cut(self, kernel_id: str) -> bool:
        """Cuts the partitions that a kernel holds and that are not cut yet, and joins devices that the kernel holds as
        a whole. Returns True if the kernel holds other devices now.

        Raises CreationDeferred if a plugin cannot do what it offered, with its reason.
        """
        is_changed = False
        while (uncut_partition := self._cut_devices.find_uncut_partition(kernel_id)) is not None:
            plugin_key, slot_name, device_id = uncut_partition
            is_changed = True
            async with self._lock_plugin(plugin_key, f"{device_id} was not cut for {slot_name}") as handle:
                free_ids = await self._free_ids_or_none(plugin_key, device_id)
                await self._cut_devices.replace_uncut_partition(
                    kernel_id, handle, slot_name, device_id, self._cut_function(handle, device_id, slot_name, free_ids)
                )
        for plugin_key, device_id in self._cut_devices.cut_devices_held_whole(kernel_id):
            async with self._lock_plugin(plugin_key, f"{device_id} was not joined") as handle:
                free_ids = await self._free_ids_or_none(plugin_key, device_id)
                await self._inventory.change_and_relist(handle, self._join_function(handle, device_id, free_ids))
        return is_changed

    async def _free_ids(self, plugin_key: str, parent_id: DeviceId | None = None) -> frozenset[DeviceId]:
        """Returns the partitions that are idle now and that no claim keeps. Raises BackendError.

        What becomes idle after the question may be a claim's that the answer has not, and is left out.
        """
        idle_ids = frozenset(
            partition.device_id for partition in self._cut_devices.idle_partitions(plugin_key, parent_id)
        )
        return idle_ids.difference(await self._kept()) if idle_ids else idle_ids

    async def _free_ids_or_none(self, plugin_key: str, parent_id: DeviceId) -> frozenset[DeviceId]:
        """Returns the partitions of a device that may be joined or reused. Returns none if the manager does not answer
        which devices claims keep.
        """
        try:
            return await self._free_ids(plugin_key, parent_id)
        except BackendError as e:
            log.warning("idle partitions of %s stay: which of them claims keep is not known: %s", plugin_key, e)
            return frozenset()

    @asynccontextmanager
    async def _lock_plugin(self, plugin_key: str, problem: str) -> AsyncIterator[PluginHandle]:
        try:
            handle = self._plugins.get(plugin_key)
            async with self._operations.lock_of(plugin_key):
                yield handle
        except BackendError as e:
            raise CreationDeferred(f"{problem}: {e.message}") from e

    def _cut_function(
        self, handle: PluginHandle, device_id: DeviceId, slot_name: SlotName, free_ids: Collection[DeviceId]
    ) -> Callable[[], Awaitable[DeviceId]]:
        async def find_or_cut() -> DeviceId:
            partitions = self._cut_devices.idle_partitions(handle.key, device_id)
            idle_partitions = [partition for partition in partitions if partition.device_id in free_ids]
            if fitting_partition := next(
                (partition for partition in idle_partitions if _offers(partition, slot_name)), None
            ):
                return fitting_partition.device_id
            # The smallest first: what is joined in vain may be needed again.
            for partition in (*sorted(idle_partitions, key=lambda part: (part.memory_size, part.device_id)), None):
                profiles = await profiles_of(handle, device_id)
                if profile_names := [
                    profile.name for profile in profiles if profile.slot_name == slot_name and profile.available > 0
                ]:
                    return await self._cut(handle, device_id, profile_names[0])
                if partition is not None:
                    await self._join(handle, partition.device_id)
            raise Conflict(f"the device {device_id} has no room for another {slot_name}")

        return find_or_cut

    async def _cut(self, handle: PluginHandle, device_id: DeviceId, profile: str) -> DeviceId:
        return await handle.call(
            "create_partition", lambda plugin: cast("Partitionable", plugin).create_partition(device_id, profile)
        )

    def _join_function(
        self, handle: PluginHandle, device_id: DeviceId, free_ids: Collection[DeviceId]
    ) -> Callable[[], Awaitable[None]]:
        async def join_all() -> None:
            partitions = self._cut_devices.idle_partitions(handle.key, device_id)
            idle_ids = [partition.device_id for partition in partitions if partition.device_id in free_ids]
            if other_ids := sorted(set(self._cut_devices.partition_ids(handle.key, device_id)) - set(idle_ids)):
                raise Conflict(f"its partition {other_ids[0]} is held, kept by a claim, or not healthy")
            for partition_id in idle_ids:
                await self._join(handle, partition_id)

        return join_all

    async def _join(self, handle: PluginHandle, partition_id: DeviceId) -> None:
        """Lets the plugin destroy a partition, so that its device is whole again. Raises BackendError.

        If the plugin refuses, the partition is left alone for a while.
        """
        try:
            await handle.call(
                "destroy_partition", lambda plugin: cast("Partitionable", plugin).destroy_partition(partition_id)
            )
        except BackendError:
            self._inventory.keep_partition(handle.key, partition_id)
            raise

    async def join_idle(self) -> None:
        """Joins the partitions that no kernel has held for ``idle_s`` and that no claim keeps. A failed join is tried
        again.
        """
        if self._idle_s is None:
            return
        now, idle_since = self._clock(), {}
        for plugin_key in self._names:
            for device in self._cut_devices.idle_partitions(plugin_key):
                idle_since[plugin_key, device.device_id] = self._idle_since.get((plugin_key, device.device_id), now)
        self._idle_since = idle_since
        expired_partitions = [
            partition_key for partition_key, idle_from in idle_since.items() if now - idle_from >= self._idle_s
        ]
        for plugin_key, device_id in expired_partitions:
            try:
                if device_id not in await self._free_ids(plugin_key):
                    self._idle_since[plugin_key, device_id] = now
                    continue
                await self._operations.operate(
                    OperateDevice(device_name=plugin_key, device_id=device_id, action="unpartition")
                )
            except BackendError as e:
                log.info("the idle partition %s of %s is not joined: %s", device_id, plugin_key, e.message)
                self._idle_since[plugin_key, device_id] = now
