"""Finds the idle partitions of a node's devices, and gives kernels partitions in place of slots that are not cut
yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ai.backend.agent.devices.inventory import Inventory
from ai.backend.common.devices import ComputeDevice
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.pluginhost.handle import PluginHandle


class CutDevices:
    """Finds, in an inventory, the partitions of devices that are cut into partitions on demand."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory

    def idle_partitions(self, plugin_key: str, parent_id: DeviceId | None = None) -> list[ComputeDevice]:
        """Returns the partitions, of one device or all, that no kernel holds and that may be joined."""
        kind = self._inventory.kinds.get(plugin_key)
        return [
            device
            for device in (kind.devices_with_health if kind is not None else ())
            if device.parent_id is not None
            and parent_id in (None, device.parent_id)
            and self._inventory.is_idle_partition(plugin_key, device)
        ]

    def partition_ids(self, plugin_key: str, parent_id: DeviceId) -> list[DeviceId]:
        """Returns all partitions of a device."""
        listed_devices = self._inventory.kinds[plugin_key].listed_devices
        return [device.device_id for device in listed_devices if device.parent_id == parent_id]

    def find_uncut_partition(self, kernel_id: str) -> tuple[str, SlotName, DeviceId] | None:
        """Finds a partition that a kernel holds and that is not cut yet. Returns its plugin, its slot and its device.

        Returns None if every partition of the kernel is cut.
        """
        inventory = self._inventory
        for slot_name, quantities in inventory.holding(kernel_id).slots.items():
            key = inventory.owner_of(slot_name)
            if key is None or key not in inventory.cut_on_demand:
                continue
            for device in inventory.kinds[key].devices:
                is_uncut = any(slot.slot_name == slot_name and slot.counters for slot in device.slots)
                if is_uncut and device.device_id in quantities:
                    return key, slot_name, device.device_id
        return None

    def cut_devices_held_whole(self, kernel_id: str) -> list[tuple[str, DeviceId]]:
        """Returns the plugins and devices that a kernel holds as a whole and that are still cut."""
        inventory = self._inventory
        return [
            (key, device.device_id)
            for slot_name, quantities in inventory.holding(kernel_id).slots.items()
            if (key := inventory.owner_of(slot_name)) is not None and key in inventory.cut_on_demand
            for device in inventory.kinds[key].devices
            if device.partition_ids and device.device_id in quantities
            if any(slot.slot_name == slot_name and not slot.counters for slot in device.slots)
        ]

    async def replace_uncut_partition(
        self,
        kernel_id: str,
        handle: PluginHandle,
        slot_name: SlotName,
        device_id: DeviceId,
        create: Callable[[], Awaitable[DeviceId]],
    ) -> None:
        """Gives a kernel the partition that ``create`` returns, in place of a partition that was not cut yet. Lists the
        devices again afterwards.

        No list is taken over meanwhile, so that nobody else gets the partition. Raises BackendError, of ``create``.
        """

        async def replace_device() -> None:
            self._inventory.replace_device(kernel_id, slot_name, device_id, await create())

        await self._inventory.change_and_relist(handle, replace_device)
