"""What this node has: devices, slots and who holds how much of each device."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from ai.backend.agent.services.plugins import PluginHandle, PluginSet
from ai.backend.common.devices import (
    AllocMapSpec,
    ComputeDevice,
    DeviceAllocation,
    DeviceHealth,
    SlotDisplay,
)
from ai.backend.common.errors import BackendError, InvalidAllocation, UnsupportedResource
from ai.backend.common.ids import SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.allocation.alloc_map import AbstractAllocMap
from ai.backend.core.allocation.node import NodeAllocator

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class DeviceKind:
    """One plugin's part of the inventory, as it answered last."""

    devices: tuple[ComputeDevice, ...] = ()
    displays: tuple[SlotDisplay, ...] = ()
    slots: dict[SlotName, Decimal] = field(default_factory=dict)
    spec: AllocMapSpec | None = None
    info: dict[str, str] = field(default_factory=dict)

    @property
    def slot_names(self) -> frozenset[SlotName]:
        of_devices = (slot.slot_name for device in self.devices for slot in device.slots)
        return frozenset([*self.slots, *of_devices, *(display.slot_name for display in self.displays)])


@dataclass(frozen=True, slots=True)
class _Holding:
    """``allocation`` is what the kernel was given, ``taken`` what of it the present devices still count."""

    allocation: DeviceAllocation
    taken: DeviceAllocation


class Inventory:
    """Devices by plugin, and the allocations of live kernels.

    ``generation`` grows whenever devices, their health or their slots change; it never falls, also over restarts of the
    agent, because it starts from the epoch.
    """

    def __init__(self, plugins: PluginSet, epoch: int, order: Sequence[str]) -> None:
        self._plugins = plugins
        self._order = order
        self.generation = epoch << 20
        self.kinds: dict[str, DeviceKind] = {}
        self._allocator = NodeAllocator({})
        self._held: dict[str, _Holding] = {}

    async def refresh(self, now: float) -> bool:
        """Ask every plugin anew. A plugin that does not answer keeps its last devices, without offering more slots.

        Returns:
            Whether anything changed.
        """
        await self._plugins.start(now)
        changed = False
        for handle in self._plugins.started():
            try:
                changed |= await self._refresh(handle)
            except BackendError as e:
                log.warning("the inventory of %s is not renewed: %s", handle.key, e)
        if changed:
            await self._rebuild()
            self.generation += 1
        return changed

    async def _refresh(self, handle: PluginHandle) -> bool:
        kind = DeviceKind(
            devices=tuple(await handle.call("list_devices", lambda p: p.list_devices())),
            displays=tuple(await handle.call("configurable_slots", lambda p: p.configurable_slots())),
            slots=dict(await handle.call("available_slots", lambda p: p.available_slots())),
            spec=handle.plugin.alloc_map_spec(),
        )
        old = self.kinds.get(handle.key)
        if old is not None and (old.devices, old.slots, old.displays) == (kind.devices, kind.slots, kind.displays):
            return False
        for slot in kind.slot_names:
            if (owner := self.owner_of(slot)) not in (None, handle.key):
                await handle.refuse(f"the plugin {owner} already offers {slot}")
                return False
        node = await handle.call("get_node_info", lambda p: p.get_node_info())
        kind.info = {
            **node.extra,
            **({"driver_version": node.driver_version} if node.driver_version else {}),
            **({"runtime_version": node.runtime_version} if node.runtime_version else {}),
        }
        self.kinds[handle.key] = kind
        return True

    async def _rebuild(self) -> None:
        """New alloc maps over the present devices, with what kernels hold of them."""
        maps: dict[str, AbstractAllocMap] = {}
        for key in self.kinds:
            try:
                maps[key] = await self._plugins.get(key).call("create_alloc_map", lambda p: p.create_alloc_map())
            except BackendError as e:
                log.error("nothing of %s can be allocated: %s", key, e)
        # No await from here on: an allocation made meanwhile would be missing from the new maps.
        self._allocator = NodeAllocator(maps, order=self._order)
        for key in maps:
            self._allocator.locate(key, self.kinds[key].devices)
        for kernel_id, holding in self._held.items():
            self._held[kernel_id] = self._count(kernel_id, holding.allocation)

    def _count(self, kernel_id: str, allocation: DeviceAllocation) -> _Holding:
        held = ResourceSlot({slot: allocation.total(slot) for slot in allocation.slots})
        taken = self._allocator.adopt(held, allocation)
        if taken.slots != allocation.slots:
            log.warning("kernel %s holds more than the present devices have; what is missing is not counted", kernel_id)
        return _Holding(allocation, taken)

    # ---- allocation -------------------------------------------------------------------------------------------------

    def owner_of(self, slot: str) -> str | None:
        """The plugin that offers a slot."""
        return next((key for key, kind in self.kinds.items() if SlotName(slot) in kind.slot_names), None)

    def check_supported(self, slots: ResourceSlot, agent_id: str) -> None:
        """Every slot that is not zero must be known here (spec 01).

        Raises:
            UnsupportedResource: names slot and agent.
        """
        for name in slots.nonzero():
            if self.owner_of(name) is None:
                raise UnsupportedResource(
                    f"the agent {agent_id} has no resource slot {name}", data={"slot": name, "agent": agent_id}
                )

    def bind(self, kernel_id: str, slots: ResourceSlot, plan: DeviceAllocation, plan_generation: int) -> None:
        """Take devices for a kernel: the planned ones; if the inventory moved on since the plan, equivalent ones where
        those cannot be had; the alloc maps' choice for what the plan leaves open.

        Raises:
            InvalidAllocation: the plan is of the present inventory and cannot be had, or is not one of this request.
            InsufficientResource, NotMultipleOfQuantum: the request cannot be had.
            In each case nothing is taken.
        """
        if kernel_id in self._held:
            return
        missing = plan.device_ids() - self._healthy(plan)
        if plan_generation == self.generation:
            if missing:
                raise InvalidAllocation(f"planned devices are missing or not healthy: {', '.join(sorted(missing))}")
            before = self._allocator.snapshot()
            try:
                self._allocator.apply(plan)
            finally:
                self._allocator.restore(before)
        allocation = self._allocator.verify_or_rebind(slots.nonzero(), DeviceAllocation() if missing else plan)
        self._held[kernel_id] = _Holding(allocation, allocation)

    def _healthy(self, plan: DeviceAllocation) -> frozenset[str]:
        """Which of the planned devices could be given now, by the plugin that each planned slot belongs to."""
        found = set()
        for slot, devices in plan.slots.items():
            kind = self.kinds.get(self.owner_of(slot) or "")
            healthy = {d.device_id for d in kind.devices if d.health is DeviceHealth.HEALTHY} if kind else set()
            found |= healthy & devices.keys()
        return frozenset(found)

    def adopt(self, kernel_id: str, allocation: DeviceAllocation) -> None:
        """Note what a kernel already holds, after a restart of the agent, whether or not it still fits."""
        self._held[kernel_id] = self._count(kernel_id, allocation)

    def free(self, kernel_id: str) -> None:
        """Return everything that a kernel holds. Safe when it holds nothing."""
        holding = self._held.pop(kernel_id, None)
        if holding is not None:
            self._allocator.free(holding.taken)

    def holds(self, kernel_id: str) -> bool:
        return kernel_id in self._held

    def holding(self, kernel_id: str) -> DeviceAllocation:
        """What a kernel holds over all plugins."""
        holding = self._held.get(kernel_id)
        return holding.allocation if holding is not None else DeviceAllocation()

    def holding_of(self, kernel_id: str, key: str) -> DeviceAllocation:
        """What a kernel holds of one plugin."""
        kind = self.kinds.get(key)
        names = kind.slot_names if kind is not None else frozenset()
        return DeviceAllocation(slots={s: d for s, d in self.holding(kernel_id).slots.items() if s in names})
