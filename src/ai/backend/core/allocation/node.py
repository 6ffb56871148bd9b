"""All devices of a node: a whole request at once, over every plugin.

The planner of the manager builds one from an agent's report, the agent builds one from its plugins: what the one plans,
the other can bind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ai.backend.common.devices import AllocMapSpec, ComputeDevice, DeviceAllocation
from ai.backend.common.errors import (
    InsufficientResource,
    InvalidAllocation,
    InvalidQuantity,
    ResourceError,
    UnsupportedResource,
)
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.allocation.alloc_map import NO_HINT, AbstractAllocMap, AffinityHint
from ai.backend.core.allocation.build import build_alloc_map
from ai.backend.core.allocation.opaque import ANY_DEVICE, OpaqueAllocMap

#: Accelerators choose before cores and memory follow them. A plugin that is not named comes after those that are, but
#: before cpu and mem if these are not named either.
DEFAULT_ORDER: tuple[str, ...] = ("cuda", "rocm", "tpu")
_LAST = ("cpu", "mem")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginDevices:
    """One plugin's devices on a node. ``alloc_map`` None: the plugin has a map of its own."""

    name: DeviceName
    devices: tuple[ComputeDevice, ...]
    alloc_map: AllocMapSpec | None


def order_plugins(names: Iterable[str], order: Sequence[str]) -> list[str]:
    """A total order: as named by ``order``, then the rest by name with cpu and mem last."""
    places = {name: i for i, name in enumerate(order)}

    def key(name: str) -> tuple[int, int, str]:
        return places.get(name, len(places)), _LAST.index(name) + 1 if name in _LAST else 0, name

    return sorted(names, key=key)


class NodeAllocator:
    """The alloc maps of a node's plugins as one.

    Contract: as :class:`AbstractAllocMap`: each call does all of its work or raises and changes nothing.
    """

    def __init__(self, maps: Mapping[str, AbstractAllocMap], *, order: Sequence[str] = DEFAULT_ORDER) -> None:
        """
        Raises:
            InvalidAllocation: two plugins offer the same slot.
        """
        self._maps = {name: maps[name] for name in order_plugins(maps, order)}
        self._owners: dict[str, str] = {}
        self._nodes: dict[DeviceId, dict[str, int]] = {}
        for name, alloc_map in self._maps.items():
            for slot in alloc_map.totals:
                if slot in self._owners:
                    raise InvalidAllocation(f"plugins {self._owners[slot]} and {name} both offer {slot}")
                self._owners[slot] = name

    @classmethod
    def from_devices(cls, plugins: Sequence[PluginDevices], *, order: Sequence[str] = DEFAULT_ORDER) -> NodeAllocator:
        """Build the maps from their descriptions; a plugin with a map of its own gets sums only."""
        maps: dict[str, AbstractAllocMap] = {}
        for plugin in plugins:
            if plugin.name in maps:
                raise InvalidAllocation(f"two plugins are named {plugin.name}")
            if plugin.alloc_map is None:
                maps[plugin.name] = OpaqueAllocMap(plugin.devices).pooled()
            else:
                maps[plugin.name] = build_alloc_map(plugin.alloc_map, plugin.devices)
        self = cls(maps, order=order)
        for plugin in plugins:
            self.locate(plugin.name, plugin.devices)
        return self

    def locate(self, plugin: str, devices: Iterable[ComputeDevice]) -> None:
        """Say where a plugin's devices are, so that other plugins can follow them."""
        for device in devices:
            if device.numa_node is not None:
                self._nodes.setdefault(device.device_id, {})[plugin] = device.numa_node

    # ---- reading

    @property
    def totals(self) -> ResourceSlot:
        return ResourceSlot({s: q for m in self._maps.values() for s, q in m.totals.items()})

    def available(self) -> ResourceSlot:
        return ResourceSlot({s: q for m in self._maps.values() for s, q in m.available().items()})

    def numa_nodes(self, allocation: DeviceAllocation) -> frozenset[int]:
        """The NUMA nodes that an allocation touches, as far as they are known."""
        found = set()
        for slot, per_device in allocation.slots.items():
            owner = self._owners.get(slot, "")
            found |= {node for d in per_device if (node := self._nodes.get(d, {}).get(owner)) is not None}
        return frozenset(found)

    # ---- taking

    def allocate(self, request: ResourceSlot) -> DeviceAllocation:
        """Take a whole request, all of it on one NUMA node when that is possible.

        Raises:
            UnsupportedResource: a slot that no plugin of this node has, with a quantity other than zero.
            InsufficientResource, NotMultipleOfQuantum, InvalidQuantity: see :meth:`AbstractAllocMap.allocate`.
        """
        wanted = self._split(request)
        before = self.snapshot()
        first = self._allocate(wanted, NO_HINT)
        touched = self.numa_nodes(first)
        if len(touched) <= 1:
            return first
        taken = self.snapshot()
        for node in sorted({n for nodes in self._nodes.values() for n in nodes.values()}):
            self.restore(before)
            try:
                other = self._allocate(wanted, AffinityHint(numa_nodes=frozenset({node})))
            except InsufficientResource:
                continue
            if self.numa_nodes(other) <= {node}:
                return other
        self.restore(taken)
        return first

    def _split(self, request: ResourceSlot) -> dict[str, dict[SlotName, Decimal]]:
        wanted: dict[str, dict[SlotName, Decimal]] = {}
        for slot, quantity in request.nonzero().items():
            owner = self._owners.get(slot)
            if owner is None:
                known = ", ".join(sorted(self._owners)) or "none"
                raise UnsupportedResource(
                    f"There is no slot {slot} here; known slots are {known}.",
                    data={"slot": slot, "known": sorted(self._owners)},
                )
            wanted.setdefault(owner, {})[SlotName(slot)] = quantity
        return wanted

    def _allocate(self, wanted: Mapping[str, Mapping[SlotName, Decimal]], hint: AffinityHint) -> DeviceAllocation:
        before = self.snapshot()
        slots: dict[SlotName, Mapping[DeviceId, Decimal]] = {}
        try:
            for name, alloc_map in self._maps.items():
                if name in wanted:
                    part = alloc_map.allocate(wanted[name], hint=hint)
                    slots.update(part.slots)
                    hint = AffinityHint(numa_nodes=hint.numa_nodes | self.numa_nodes(part))
        except BaseException:
            self.restore(before)
            raise
        return DeviceAllocation(slots=slots)

    def _parts(self, allocation: DeviceAllocation) -> dict[str, DeviceAllocation]:
        parts: dict[str, dict[SlotName, Mapping[DeviceId, Decimal]]] = {}
        for slot, per_device in allocation.slots.items():
            owner = self._owners.get(slot)
            if owner is None:
                raise InvalidAllocation(f"there is no slot {slot} here", data={"slot": slot})
            parts.setdefault(owner, {})[slot] = per_device
        return {name: DeviceAllocation(slots=slots) for name, slots in parts.items()}

    def apply(self, allocation: DeviceAllocation) -> None:
        """Take exactly this. Raises InvalidAllocation."""
        before = self.snapshot()
        try:
            for name, part in self._parts(allocation).items():
                self._maps[name].apply(part)
        except BaseException:
            self.restore(before)
            raise

    def free(self, allocation: DeviceAllocation) -> None:
        """Give exactly this back. Raises InvalidAllocation."""
        before = self.snapshot()
        try:
            for name, part in self._parts(allocation).items():
                self._maps[name].free(part)
        except BaseException:
            self.restore(before)
            raise

    def verify_or_rebind(self, request: ResourceSlot, plan: DeviceAllocation) -> DeviceAllocation:
        """Bind a plan that may be older than the devices are.

        The plan is taken as it is if it can be; what it leaves open is chosen here. If the devices have moved on,
        equivalent ones are chosen for the whole request: a planned device is gone, taken or not healthy any more.

        Raises:
            InvalidAllocation: the plan is not one of this request.
            UnsupportedResource, InsufficientResource ...: nothing equivalent is there either.
        """
        wanted = request.nonzero()
        for slot in plan.slots:
            if plan.total(slot) != wanted[slot]:
                raise InvalidAllocation(
                    f"the plan has {plan.total(slot)} {slot}, the request {wanted[slot]}", data={"slot": slot}
                )
        before = self.snapshot()
        offered = self.available()
        try:
            self.apply(plan)
            left = self.available()
            if any(offered[slot] - left[slot] != plan.total(slot) for slot in plan.slots):
                # ``apply`` also takes from unhealthy devices, which offer nothing.
                raise InvalidAllocation("a planned device is not healthy any more")
            rest = ResourceSlot({slot: q for slot, q in wanted.items() if slot not in plan.slots})
            hint = AffinityHint(numa_nodes=self.numa_nodes(plan))
            open_part = self._allocate(self._split(rest), hint)
        except (ResourceError, InvalidQuantity):
            self.restore(before)
            return self.allocate(request)
        return DeviceAllocation(slots={**plan.slots, **open_part.slots})

    def adopt(self, held: ResourceSlot, allocation: DeviceAllocation) -> DeviceAllocation:
        """Count a workload that was there before this allocator, as well as the present devices allow.

        Its devices are taken where they still exist and have room. What is held beyond them of slots that exist (a plan
        that only counts, a device that is gone) is taken from any device. The rest is not counted: there is nothing
        left to protect. Never raises; returns what was taken, which is what a later :meth:`free` must give back.
        """
        taken: dict[SlotName, dict[DeviceId, Decimal]] = {}
        for slot, per_device in allocation.slots.items():
            for device_id, quantity in per_device.items():
                part = DeviceAllocation(slots={slot: {device_id: quantity}})
                try:
                    self.apply(part)
                except InvalidAllocation:
                    continue
                taken.setdefault(slot, {})[device_id] = quantity
        for name, quantity in held.nonzero().items():
            slot = SlotName(name)
            left = quantity - sum(taken.get(slot, {}).values(), Decimal(0))
            if left <= 0 or slot not in self._owners:
                continue
            try:
                more = self._allocate(self._split(ResourceSlot({slot: left})), NO_HINT)
            except (ResourceError, InvalidQuantity):
                continue
            for device_id, part_quantity in more.slots[slot].items():
                per_device_taken = taken.setdefault(slot, {})
                per_device_taken[device_id] = per_device_taken.get(device_id, Decimal(0)) + part_quantity
        return DeviceAllocation(slots=taken)

    def snapshot(self) -> dict[str, Any]:
        return {name: alloc_map.snapshot() for name, alloc_map in self._maps.items()}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        for name, part in snapshot.items():
            self._maps[name].restore(part)


def without_placeholders(allocation: DeviceAllocation) -> DeviceAllocation:
    """An allocation as a plan for an agent: slots whose devices the agent chooses are left out."""
    return DeviceAllocation(slots={s: dict(d) for s, d in allocation.slots.items() if ANY_DEVICE not in d})
