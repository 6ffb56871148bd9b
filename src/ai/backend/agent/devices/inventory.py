"""The inventory of this node: its devices, its slots, and the allocations of its kernels."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial

from ai.backend.agent.devices.health import DeviceHealthTracker
from ai.backend.agent.devices.plugins import PluginHandle, PluginSet
from ai.backend.common.devices import (
    AllocMapSpec,
    ComputeDevice,
    DeviceAllocation,
    DeviceHealth,
    SlotDisplay,
    VariantNamespace,
    VariantProperty,
)
from ai.backend.common.errors import (
    BackendError,
    InsufficientResource,
    InvalidAllocation,
    PluginError,
    UnsupportedResource,
)
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.wire.reports import UnhealthyDevice
from ai.backend.core.allocation.alloc_map import AbstractAllocMap
from ai.backend.core.allocation.node import NodeAllocator
from ai.backend.core.allocation.stock_maps import build_alloc_map
from ai.backend.plugin.accelerator import AbstractComputePlugin, DeviceHealthChange, responses, slot_totals
from ai.backend.pluginhost import Allocate, ExternalAllocMap, allocator

log = logging.getLogger(__name__)
INTRINSIC = frozenset({"cpu", "mem"})
"""Device names whose slots no other plugin may offer, even if these plugins are blocked."""
_LOST = "its plugin lists it no more"


async def _spec_of(plugin: AbstractComputePlugin) -> AllocMapSpec | None:
    return plugin.alloc_map_spec()


async def _chooser_of(plugin: AbstractComputePlugin) -> Allocate:
    alloc_map = await plugin.create_alloc_map()
    return alloc_map.choose if isinstance(alloc_map, ExternalAllocMap) else allocator(alloc_map)


def _unavailable(*_: object) -> DeviceAllocation:
    raise InsufficientResource("the plugin's alloc map is not available")


@dataclass(slots=True, kw_only=True)
class DeviceKind:
    """One plugin's part of the inventory, as of its last list of devices (``answered``, at ``asked_at``).

    ``devices`` are these devices with the health that counts; ``slots`` are computed from them.
    """

    devices: tuple[ComputeDevice, ...] = ()
    answered: tuple[ComputeDevice, ...] = ()
    asked_at: float = 0.0
    displays: tuple[SlotDisplay, ...] = ()
    slots: dict[SlotName, Decimal] = field(default_factory=dict)
    spec: AllocMapSpec | None = None
    namespaces: tuple[VariantNamespace, ...] = ()
    info: dict[str, str] | None = None

    def is_equivalent(self, other: DeviceKind) -> bool:
        """Return whether allocation gives the same results with both."""
        return (self.devices, self.slots, self.displays, self.spec, self.namespaces) == (
            other.devices,
            other.slots,
            other.displays,
            other.spec,
            other.namespaces,
        )

    @property
    def slot_names(self) -> frozenset[SlotName]:
        of_devices = (slot.slot_name for device in self.devices for slot in device.slots)
        return frozenset([*self.slots, *of_devices, *(display.slot_name for display in self.displays)])


@dataclass(frozen=True, slots=True)
class _Holding:
    """``allocation`` is the kernel's allocation; ``taken`` is the part of it that the present devices provide."""

    allocation: DeviceAllocation
    taken: DeviceAllocation


class Inventory:
    """Holds the devices of each plugin and the allocations of live kernels.

    ``generation`` grows whenever devices, their health or their slots change. It grows over restarts of the agent too,
    because it starts from the epoch.
    """

    def __init__(self, plugins: PluginSet, epoch: int, order: Sequence[str]) -> None:
        self._plugins = plugins
        self._order = order
        self.generation = epoch << 20
        self.kinds: dict[str, DeviceKind] = {}
        self._health: dict[str, DeviceHealthTracker] = {}
        self._withheld: dict[tuple[str, DeviceId], str] = {}
        self._allocator = NodeAllocator({})
        self._held: dict[str, _Holding] = {}
        self._offering: frozenset[str] = frozenset()
        self._built: dict[str, tuple[ComputeDevice, ...]] = {}
        self._refreshing = asyncio.Lock()

    async def refresh(self, now: float) -> bool:
        """Query every plugin. A plugin that does not answer keeps its last devices without offering more slots.

        Returns:
            Whether anything changed.
        """
        async with self._refreshing:  # the older of two concurrent answers must not win
            return await self._refresh_all(now)

    async def _refresh_all(self, now: float) -> bool:
        await self._plugins.start(now)
        changed = False
        for handle in self._plugins.started():
            try:
                changed |= await self._refresh(handle)
            except BackendError as e:
                log.debug("the inventory of %s is not renewed: %s", handle.key, e)
        offering = frozenset(handle.key for handle in self._plugins.started())
        changed, self._offering = changed or offering != self._offering, offering
        if changed or self.is_stale:
            await self.rebuild()
        if changed:
            self.generation += 1
        return changed

    @property
    def is_stale(self) -> bool:
        """Returns True while the alloc maps are of other devices than the present ones: a rebuild is due."""
        return self._built != {key: kind.devices for key, kind in self.kinds.items()}

    async def _refresh(self, handle: PluginHandle) -> bool:
        foreign = partial(self._foreign, handle.key)
        asked_at = asyncio.get_running_loop().time()
        displays = await handle.call(
            "configurable_slots", lambda p: p.configurable_slots(), check=partial(responses.displays, foreign=foreign)
        )
        answered = await handle.call(
            "list_devices",
            lambda p: p.list_devices(),
            check=partial(responses.devices, key=handle.key, displays=tuple(displays), foreign=foreign),
        )
        slots = await handle.call(
            "available_slots",
            lambda p: p.available_slots(),
            check=partial(responses.slots, listed=answered, displays=tuple(displays)),
        )
        spaces = await handle.call("variant_namespaces", lambda p: p.variant_namespaces(), check=responses.namespaces)
        spec = await handle.call("alloc_map_spec", _spec_of, check=partial(responses.alloc_map, listed=answered))
        kind = DeviceKind(
            devices=tuple(answered),
            answered=tuple(answered),
            asked_at=asked_at,
            displays=tuple(displays),
            slots=dict(slots),
            spec=spec,
            namespaces=tuple(spaces),
        )
        old = self.kinds.get(handle.key)
        if old is not None and (lost := self._lost(old, kind)):
            return self._keep_without(handle, old, lost)
        self._update_health(handle.key, kind)
        if old is not None and kind.is_equivalent(old):
            old.answered, old.asked_at = kind.answered, kind.asked_at
            old.info = await self._info(handle) if old.info is None else old.info
            return False
        kind.info = await self._info(handle)
        self._update_health(handle.key, kind)  # again: health may have changed meanwhile
        self.kinds[handle.key] = kind
        return True

    @staticmethod
    async def _info(handle: PluginHandle) -> dict[str, str] | None:
        """Return the plugin's information about the node; None if the call fails, because it is only informative."""
        try:
            node = await handle.call("get_node_info", lambda p: p.get_node_info(), check=responses.info)
        except BackendError:
            return None
        versions = {"driver_version": node.driver_version, "runtime_version": node.runtime_version}
        return {**node.extra, **{name: version for name, version in versions.items() if version}}

    def _foreign(self, key: str, slot: str) -> str | None:
        """Return the other plugin to which a slot belongs by its name or by an existing offer, if there is one."""
        device_name = slot.partition(".")[0]
        others = {handle.key for handle in self._plugins.handles if handle.key != key} | (INTRINSIC - {key})
        if device_name in others:
            return device_name
        owner = self.owner_of(slot)
        return owner if owner != key else None

    def _lost(self, old: DeviceKind, new: DeviceKind) -> frozenset[DeviceId]:
        """Return the devices that kernels hold and that the plugin does not list any more."""
        removed = {device.device_id: device for device in old.answered}
        for device in new.answered:
            removed.pop(device.device_id, None)
        held = [holding.allocation.slots for holding in self._held.values()] if removed else []
        return frozenset(
            device.device_id
            for device in removed.values()
            if any(device.device_id in slots.get(slot.slot_name, ()) for slots in held for slot in device.slots)
        )

    def _keep_without(self, handle: PluginHandle, old: DeviceKind, lost: frozenset[DeviceId]) -> bool:
        """Keep the old devices and mark the lost ones as failed, because ids must not change under a workload.

        New devices of the same answer may be the lost ones under other names, so they are not offered either.
        """
        shown = ", ".join(sorted(lost)[:3])
        handle.complain("list_devices", f"list_devices: {shown:.200} is listed no more, and a kernel holds it")
        before = old.devices
        old.answered = tuple(
            replace(d, health=DeviceHealth.UNHEALTHY, health_reason=_LOST) if d.device_id in lost else d
            for d in old.answered
        )
        old.asked_at = asyncio.get_running_loop().time()
        self._update_health(handle.key, old)
        return old.devices != before

    def _update_health(self, key: str, kind: DeviceKind) -> None:
        """Set the devices' health from the list and the later changes, and recompute the slots."""
        tracker = self._health.setdefault(key, DeviceHealthTracker())
        tracker.retain(device.device_id for device in kind.answered)
        kind.devices = tuple(
            device
            if (reason := self._withheld.get((key, device.device_id))) is None
            else replace(device, health=DeviceHealth.UNHEALTHY, health_reason=reason)
            for device in tracker.evaluate(kind.answered, kind.asked_at, asyncio.get_running_loop().time())
        )
        kind.slots = {**kind.slots, **slot_totals(kind.devices)}

    def on_health_changes(self, key: str, changes: Iterable[DeviceHealthChange] = ()) -> bool:
        """Apply health changes of a plugin's devices, and the recoveries that are due. Unlisted devices are ignored.

        Returns:
            Whether anything changed; :meth:`rebuild` must follow. Until then :meth:`bind` refuses failed devices.
        """
        kind, now = self.kinds.get(key), asyncio.get_running_loop().time()
        if kind is None:
            return False
        listed = {device.device_id for device in kind.answered}
        for change in changes:
            if change.device_id in listed:
                self._health[key].on_change(change, now)
        before = kind.devices
        self._update_health(key, kind)
        if kind.devices == before:
            return False
        self.generation += 1
        return True

    def withhold(self, key: str, device_id: DeviceId, reason: str) -> None:
        """Exclude a device from allocation until :meth:`restore`. :meth:`rebuild` must follow."""
        self._withheld[key, device_id] = reason
        self.on_health_changes(key)

    def restore(self, key: str, device_id: DeviceId) -> None:
        """Undo :meth:`withhold`. :meth:`rebuild` must follow."""
        self._withheld.pop((key, device_id), None)
        self.on_health_changes(key)

    def holders(self, key: str, device_id: DeviceId) -> list[str]:
        """Return the kernels that hold a device of a plugin."""
        names = self.kinds[key].slot_names
        return [
            kernel_id
            for kernel_id, holding in self._held.items()
            if any(device_id in devices for slot, devices in holding.allocation.slots.items() if slot in names)
        ]

    def health_due(self) -> float | None:
        """Return when the next recovery is due for :meth:`on_health_changes`, in seconds of the monotonic clock."""
        return min((due for tracker in self._health.values() if (due := tracker.due()) is not None), default=None)

    def unhealthy(self, kernel_id: str) -> list[UnhealthyDevice]:
        """Return the failed devices that a kernel holds, in a stable order."""
        held = self.holding(kernel_id).slots
        return [
            UnhealthyDevice(device_name=key, device_id=device.device_id, reason=device.health_reason[:500])
            for key, kind in sorted(self.kinds.items())
            for device in kind.devices
            if device.health is not DeviceHealth.HEALTHY
            and any(device.device_id in held.get(slot.slot_name, ()) for slot in device.slots)
        ]

    async def rebuild(self) -> None:
        """Build the alloc maps anew from the present devices and the allocations of kernels.

        Maps by a spec are built at once, so that failed devices cannot be allocated from now on. Only a plugin's own
        map needs a call of the plugin.
        """
        own: dict[str, Allocate] = {}
        for key in [key for key, kind in self.kinds.items() if kind.spec is None]:
            try:
                own[key] = await self._plugins.get(key).call("create_alloc_map", _chooser_of)
            except BackendError as e:
                own[key] = _unavailable
                log.warning("nothing of %s can be allocated: %s", key, e)
        # No await from here on: an allocation made meanwhile would be missing from the new maps.
        maps: dict[str, AbstractAllocMap] = {}
        for key, kind in self.kinds.items():
            try:
                if kind.spec is not None:
                    maps[key] = build_alloc_map(kind.spec, kind.devices)
                else:
                    complain = partial(self._complain, key)
                    maps[key] = ExternalAllocMap(kind.devices, own.get(key, _unavailable), complain=complain)
            except BackendError as e:
                log.error("nothing of %s can be allocated: %s", key, e)
        self._allocator = NodeAllocator(maps, order=self._order)
        for key in maps:
            self._allocator.locate(key, self.kinds[key].devices, self.kinds[key].namespaces)
        for kernel_id, holding in self._held.items():
            self._held[kernel_id] = self._count(kernel_id, holding.allocation)
        self._built = {key: kind.devices for key, kind in self.kinds.items()}

    def _complain(self, key: str, reason: str | None) -> None:
        for handle in self._plugins.started():
            if handle.key == key:
                handle.complain("allocate", reason)

    def _count(self, kernel_id: str, allocation: DeviceAllocation) -> _Holding:
        held = ResourceSlot({slot: allocation.total(slot) for slot in allocation.slots})
        taken = self._allocator.adopt(held, allocation)
        if taken.slots != allocation.slots:
            log.warning("kernel %s holds more than the present devices have; what is missing is not counted", kernel_id)
        return _Holding(allocation, taken)

    # ---- allocation -------------------------------------------------------------------------------------------------

    def owner_of(self, slot: str) -> str | None:
        """Return the plugin that offers a slot; None if there is none."""
        return next((key for key, kind in self.kinds.items() if SlotName(slot) in kind.slot_names), None)

    def check_supported(self, slots: ResourceSlot, agent_id: str) -> None:
        """Check that a plugin offers every slot that is not zero (spec 01).

        Raises:
            UnsupportedResource: names slot and agent.
            InsufficientResource: a plugin that may offer the slot is being started again.
        """
        for name in slots.nonzero():
            if self.owner_of(name) is None:
                for handle in self._plugins.handles:
                    if handle.may_return and (not handle.version or name.partition(".")[0] == handle.key):
                        raise InsufficientResource(f"{name}: the plugin {handle.key} is not available: {handle.reason}")
                raise UnsupportedResource(
                    f"the agent {agent_id} has no resource slot {name}", data={"slot": name, "agent": agent_id}
                )

    def bind(
        self,
        kernel_id: str,
        slots: ResourceSlot,
        plan: DeviceAllocation,
        plan_generation: int,
        requirements: Sequence[VariantProperty] = (),
    ) -> None:
        """Allocate devices to a kernel.

        The planned devices are taken. If the inventory has changed since the plan, equivalent devices may replace them.
        The alloc maps choose the devices that the plan leaves open.

        Raises:
            InvalidAllocation: the plan is of the present inventory and impossible, or does not match the request.
            InsufficientResource, NotMultipleOfQuantum: the request is impossible, or a plugin is not available.
            In each case nothing is allocated.
        """
        if kernel_id in self._held:
            return
        self._check_available(slots)
        missing = plan.device_ids() - self._healthy(plan)
        if plan_generation == self.generation:
            if missing:
                raise InvalidAllocation(f"planned devices are missing or not healthy: {', '.join(sorted(missing))}")
            before = self._allocator.snapshot()
            try:
                self._allocator.apply(plan)
            finally:
                self._allocator.restore(before)
        before = self._allocator.snapshot()
        allocation = self._allocator.verify_or_rebind(
            slots.nonzero(), DeviceAllocation() if missing else plan, requirements=requirements
        )
        if failed := allocation.device_ids() - self._healthy(allocation):
            # A plugin's own map may be older than the last health changes.
            self._allocator.restore(before)
            raise InsufficientResource(f"no healthy device is left in place of {', '.join(sorted(failed))}")
        self._held[kernel_id] = _Holding(allocation, allocation)

    def _check_available(self, slots: ResourceSlot) -> None:
        """Check that the plugins of all slots can be called. Raises InsufficientResource."""
        for slot in slots.nonzero():
            if (owner := self.owner_of(slot)) is not None:
                try:
                    self._plugins.get(owner)
                except PluginError as e:
                    raise InsufficientResource(f"{slot}: {e.message}", data={"slot": slot}) from None

    def _healthy(self, plan: DeviceAllocation) -> frozenset[str]:
        """Return the planned devices that are healthy now."""
        result = set()
        for slot, devices in plan.slots.items():
            kind = self.kinds.get(self.owner_of(slot) or "")
            healthy = {d.device_id for d in kind.devices if d.health is DeviceHealth.HEALTHY} if kind else set()
            result |= healthy & devices.keys()
        return frozenset(result)

    def adopt(self, kernel_id: str, allocation: DeviceAllocation) -> None:
        """Record an existing allocation after a restart of the agent, even if it exceeds the present devices."""
        self._held[kernel_id] = self._count(kernel_id, allocation)

    def free(self, kernel_id: str) -> None:
        """Free the allocation of a kernel, if it has one."""
        holding = self._held.pop(kernel_id, None)
        if holding is not None:
            self._allocator.free(holding.taken)

    def holds(self, kernel_id: str) -> bool:
        return kernel_id in self._held

    def holding(self, kernel_id: str) -> DeviceAllocation:
        """Return the allocation of a kernel over all plugins."""
        holding = self._held.get(kernel_id)
        return holding.allocation if holding is not None else DeviceAllocation()

    def holding_of(self, kernel_id: str, key: str) -> DeviceAllocation:
        """Return the part of a kernel's allocation that belongs to one plugin."""
        kind = self.kinds.get(key)
        names = kind.slot_names if kind is not None else frozenset()
        return DeviceAllocation(slots={s: d for s, d in self.holding(kernel_id).slots.items() if s in names})
