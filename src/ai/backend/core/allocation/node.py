"""Allocates whole requests over the devices of all plugins of a node, for the manager and for the agent alike."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import msgspec

from ai.backend.common.devices import (
    AllocMapSpec,
    ComputeDevice,
    DeviceAllocation,
    DeviceHealth,
    VariantNamespace,
    VariantProperty,
)
from ai.backend.common.errors import (
    InsufficientResource,
    InvalidAllocation,
    InvalidQuantity,
    ResourceError,
    UnsupportedResource,
)
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.structs import replace
from ai.backend.core.allocation import proximity
from ai.backend.core.allocation.alloc_map import NO_HINT, AbstractAllocMap, AffinityHint
from ai.backend.core.allocation.ledger import LedgerAllocMap
from ai.backend.core.allocation.requests.amounts import alternatives_with
from ai.backend.core.allocation.requests.compiled import DeviceRequest, Selection
from ai.backend.core.allocation.slot_pool import Parts, SlotPool
from ai.backend.core.allocation.stock_maps import ANY_DEVICE, OpaqueAllocMap, build_alloc_map
from ai.backend.core.allocation.variants import HOST_PLUGINS, PluginVariants, RequestedSlots, select_devices

#: Accelerators choose before cores and memory follow them. A plugin that is not named comes after those that are, but
#: before cpu and mem if these are not named either.
DEFAULT_ORDER: tuple[str, ...] = ("cuda", "rocm", "tpu")
_MAX_CACHED_GRANTS = 16_384
_NO_NUMA_NODES: frozenset[int] = frozenset()


class PluginDevices(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one plugin's devices on a node. ``alloc_map`` None: the plugin has its own map."""

    name: DeviceName
    devices: tuple[ComputeDevice, ...]
    alloc_map: AllocMapSpec | None
    namespaces: tuple[VariantNamespace, ...] = ()


def devices_by_id(plugins: Iterable[PluginDevices]) -> dict[DeviceId, ComputeDevice]:
    """Returns the devices by their ids, and also by the ids of the partitions that are counted at each device."""
    return {
        device_id: device
        for plugin in plugins
        for device in plugin.devices
        for device_id in (device.device_id, *device.partition_ids)
    }


class _Grant(msgspec.Struct, frozen=True):
    """Stores a cached allocation of one alloc map.

    ``nodes``: its NUMA nodes; ``hint``: for the plugins that choose later.
    """

    parts: Parts
    part: Mapping[SlotName, Mapping[DeviceId, Decimal]]
    nodes: frozenset[int]
    hint: AffinityHint


class PreparedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a request prepared for a class of nodes: quantities by plugin, and the devices that may be given."""

    requested: RequestedSlots
    selections: Mapping[str, Selection]


def order_plugins(names: Iterable[str], order: Sequence[str]) -> list[str]:
    """Returns the plugins named in ``order`` first, then the rest by name with cpu and mem last."""
    position_of_name = {name: position for position, name in reversed(list(enumerate(order)))}

    def sort_key(name: str) -> tuple[int, int, str]:
        return position_of_name.get(name, len(order)), HOST_PLUGINS.index(name) + 1 if name in HOST_PLUGINS else 0, name

    return sorted(names, key=sort_key)


class NodeAllocator:
    """Combines the alloc maps of a node's plugins. Each call does all of its work, or raises and changes nothing."""

    def __init__(self, maps: Mapping[str, AbstractAllocMap], *, order: Sequence[str] = DEFAULT_ORDER) -> None:
        """Assigns slots to plugins. Raises InvalidAllocation if two plugins offer the same slot."""
        self._maps = {name: maps[name] for name in order_plugins(maps, order)}
        self._owners: dict[str, str] = {}
        self._nodes: dict[str, dict[DeviceId, int]] = {}
        self._unhealthy: dict[str, set[DeviceId]] = {}
        self._variants: dict[str, PluginVariants] = {}
        self._uncut: dict[str, dict[SlotName, frozenset[DeviceId]]] = {}
        self._memo: dict[Hashable, _Grant] | None = None
        for name, alloc_map in self._maps.items():
            for slot in alloc_map.totals:
                if slot in self._owners:
                    raise InvalidAllocation(f"plugins {self._owners[slot]} and {name} both offer {slot}")
                self._owners[slot] = name

    @classmethod
    def from_devices(cls, plugins: Sequence[PluginDevices], *, order: Sequence[str] = DEFAULT_ORDER) -> NodeAllocator:
        """Builds an allocator with an alloc map for each plugin.

        A plugin that allocates by itself, on its node, gets a map that counts only the sums of its slots.
        """
        maps: dict[str, AbstractAllocMap] = {}
        for plugin in plugins:
            if plugin.name in maps:
                raise InvalidAllocation(f"two plugins are named {plugin.name}")
            if plugin.alloc_map is None:
                maps[plugin.name] = OpaqueAllocMap(plugin.devices)
            else:
                maps[plugin.name] = build_alloc_map(plugin.alloc_map, plugin.devices)
        self = cls(maps, order=order)
        for plugin in plugins:
            self.record_devices(plugin.name, plugin.devices, plugin.namespaces)
        return self

    def record_devices(
        self, plugin: str, devices: Sequence[ComputeDevice], namespaces: Sequence[VariantNamespace] = ()
    ) -> None:
        """Records the health, the NUMA nodes and the properties of a plugin's devices.

        They serve for hints to other plugins and for requirements.
        """
        self._variants[plugin] = PluginVariants(devices, namespaces)
        self._unhealthy[plugin] = {device.device_id for device in devices if device.health is not DeviceHealth.HEALTHY}
        self._nodes[plugin] = {
            device_id: device.numa_node
            for device in devices
            if device.numa_node is not None
            for device_id in (device.device_id, *device.partition_ids)
        }
        self._uncut.pop(plugin, None)
        if any(slot.counters for device in devices for slot in device.slots):
            self._uncut[plugin] = _uncut_devices(devices)

    def share_grants(self) -> None:
        """Starts a cache of choices that all clones share, for planners that hold many equal nodes."""
        self._memo = {}

    def clone(self) -> NodeAllocator:
        """Returns an independent copy in the same state. Supports stock maps only, as :meth:`from_devices` builds."""
        copy = object.__new__(NodeAllocator)
        copy.__dict__.update(self.__dict__)
        copy._maps = {
            name: alloc_map.clone() for name, alloc_map in self._maps.items() if isinstance(alloc_map, LedgerAllocMap)
        }
        return copy

    # ---- reading

    def pools(self) -> dict[str, SlotPool]:
        """Returns the pools of the stock maps by slot, read-only."""
        return {slot: pool for alloc_map in self._maps.values() for slot, pool in alloc_map.pools.items()}

    @property
    def totals(self) -> ResourceSlot:
        return ResourceSlot(
            {slot: quantity for alloc_map in self._maps.values() for slot, quantity in alloc_map.totals.items()}
        )

    def available(self) -> ResourceSlot:
        return ResourceSlot(
            {slot: quantity for alloc_map in self._maps.values() for slot, quantity in alloc_map.available().items()}
        )

    def numa_nodes(self, allocation: DeviceAllocation) -> frozenset[int]:
        """Returns the known NUMA nodes of an allocation."""
        allocation_nodes = set()
        for slot, quantity_of_device in allocation.slots.items():
            node_of_device = self._nodes.get(self._owners.get(slot, ""))
            if node_of_device:
                allocation_nodes |= {
                    node_of_device[device_id] for device_id in quantity_of_device if device_id in node_of_device
                }
        return frozenset(allocation_nodes)

    # ---- taking

    def check_supported(self, request: ResourceSlot, requirements: Sequence[VariantProperty] = ()) -> None:
        """Checks that the slots and devices exist at all, free and healthy or not. Raises UnsupportedResource."""
        select_devices(self._split(request), self._variants, requirements)

    def allocate(
        self,
        request: ResourceSlot,
        *,
        requirements: Sequence[VariantProperty] = (),
        device_request: DeviceRequest | None = None,
    ) -> DeviceAllocation:
        """Takes a whole request, on one NUMA node if possible.

        A requirement binds the requested slots of those plugins whose devices state something in its namespace, a
        device request all but cores and memory.

        Raises:
            UnsupportedResource: a slot that no plugin of this node has, with a quantity other than zero; a requirement
                that no device of this node satisfies. The message says what there is.
            InsufficientResource, NotMultipleOfQuantum, InvalidQuantity: see :meth:`AbstractAllocMap.allocate`.
        """
        return self.take(self.prepare(request, requirements, device_request))

    def prepare(
        self,
        request: ResourceSlot,
        requirements: Sequence[VariantProperty] = (),
        device_request: DeviceRequest | None = None,
        *,
        near_network: bool = False,
    ) -> PreparedRequest:
        """Parses a request for every allocator with the same devices. Raises UnsupportedResource.

        ``near_network``: devices near a network card are given first.
        """
        requested_slots = self._split(request)
        selections = select_devices(requested_slots, self._variants, requirements, device_request)
        if near_network:
            for name in requested_slots:
                devices = self._variants[name].devices if name in self._variants and name not in HOST_PLUGINS else ()
                if preferred_sets := proximity.sets_near_network(devices):
                    selection = selections.get(name) or Selection(frozenset(device.device_id for device in devices))
                    selections[name] = replace(selection, preferred=preferred_sets)
        return PreparedRequest(requested=requested_slots, selections=selections)

    def take(self, prepared: PreparedRequest) -> DeviceAllocation:
        """Allocates a prepared request. Raises the same as :meth:`allocate`, except UnsupportedResource."""
        requested_slots, selections = prepared.requested, prepared.selections
        used_nodes: list[frozenset[int]] = []
        first_allocation = self._allocate(requested_slots, NO_HINT, selections, used_nodes)
        if not used_nodes or used_nodes.count(used_nodes[0]) == len(used_nodes):
            return first_allocation
        if any(len(nodes) > 1 for nodes in used_nodes):
            # A map that prefers one node found none: no other choice brings them together.
            return first_allocation
        self.free(first_allocation)
        plugin_nodes = [
            set(node_of_device.values()) for plugin in requested_slots if (node_of_device := self._nodes.get(plugin))
        ]
        for node in sorted(set.intersection(*plugin_nodes)):
            try:
                other_allocation = self._allocate(
                    requested_slots, AffinityHint(numa_nodes=frozenset({node})), selections
                )
            except InsufficientResource:
                continue
            if self.numa_nodes(other_allocation) <= {node}:
                return other_allocation
            self.free(other_allocation)
        self.apply(first_allocation)
        return first_allocation

    def _split(self, request: ResourceSlot) -> dict[str, dict[SlotName, Decimal]]:
        """Splits a request by plugin, in the order in which the plugins choose."""
        slots_of_plugin: dict[str, dict[SlotName, Decimal]] = {}
        for slot, quantity in request.nonzero().items():
            plugin = self._owners.get(slot)
            if plugin is None:
                slots_text = ", ".join(sorted(self._owners)) or "none"
                raise UnsupportedResource(
                    f"There is no slot {slot} here; known slots are {slots_text}.",
                    data={"slot": slot, "known": sorted(self._owners)},
                )
            slots_of_plugin.setdefault(plugin, {})[SlotName(slot)] = quantity
        return (
            {name: slots_of_plugin[name] for name in self._maps if name in slots_of_plugin}
            if len(slots_of_plugin) > 1
            else slots_of_plugin
        )

    def _allocate(
        self,
        requested_slots: RequestedSlots,
        hint: AffinityHint,
        selections: Mapping[str, Selection],
        used_nodes: list[frozenset[int]] | None = None,
    ) -> DeviceAllocation:
        """Allocates from each plugin. Appends the NUMA nodes used by each located plugin to ``used_nodes``."""
        allocated_slots: dict[SlotName, Mapping[DeviceId, Decimal]] = {}
        try:
            for plugin in requested_slots:
                grant = self._grant_selected(plugin, requested_slots[plugin], hint, selections.get(plugin))
                allocated_slots.update(grant.part)
                if grant.nodes:
                    hint = grant.hint
                    if used_nodes is not None:
                        used_nodes.append(grant.nodes)
        except BaseException:
            self.free(DeviceAllocation(slots=allocated_slots))
            raise
        return DeviceAllocation(slots=allocated_slots)

    def _grant_selected(
        self, plugin: str, requested_slots: Mapping[SlotName, Decimal], hint: AffinityHint, selection: Selection | None
    ) -> _Grant:
        """Allocates one plugin's part from the first set of devices that may be given together and has room."""
        alloc_map = self._maps[plugin]
        if selection is None or selection.allows_any:
            eligible_ids = None if selection is None else selection.devices
            for preferred_ids in self._preferred_sets(plugin, requested_slots, selection):
                with suppress(InsufficientResource):
                    return self._grant(
                        plugin,
                        requested_slots,
                        hint,
                        preferred_ids if eligible_ids is None else preferred_ids & eligible_ids,
                    )
            return self._grant(plugin, requested_slots, hint, eligible_ids)
        pool = alloc_map.pools.get(next(iter(requested_slots)))
        refusal: InsufficientResource | None = None
        candidate_sets = selection.candidates(lambda device_id: _free_quanta(pool, alloc_map.ranks.get(device_id)))
        nearest_sets = [
            device_ids & preferred_ids for preferred_ids in selection.preferred for device_ids in candidate_sets
        ]
        for device_ids in (*nearest_sets, *candidate_sets):
            try:
                grant = self._grant(plugin, requested_slots, hint, device_ids)
            except InsufficientResource as e:
                if refusal is None or _available_quantity(e) > _available_quantity(refusal):
                    refusal = e
                continue
            taken_ids = frozenset(
                device_id for quantity_of_device in grant.part.values() for device_id in quantity_of_device
            )
            if pool is not None or selection.allows(taken_ids):
                return grant
            alloc_map.free(DeviceAllocation(slots=grant.part))  # a plugin's own map, which knows no groups
        reason = refusal.message if refusal is not None else "no devices qualify"
        raise InsufficientResource(f"{reason}, with {selection.text}", data=refusal.data if refusal is not None else {})

    def _preferred_sets(
        self, plugin: str, requested_slots: Mapping[SlotName, Decimal], selection: Selection | None
    ) -> Iterator[frozenset[DeviceId]]:
        """Yields sets of devices to try first: existing partitions, and then the near devices of the selection.

        No device is cut while existing partitions suffice.
        """
        if (uncut_devices := self._uncut.get(plugin)) is not None and len(requested_slots) == 1:
            device_ids = uncut_devices.get(next(iter(requested_slots)))
            if device_ids is not None:
                yield device_ids
        if selection is not None:
            yield from selection.preferred

    def _grant(
        self,
        plugin: str,
        requested_slots: Mapping[SlotName, Decimal],
        hint: AffinityHint,
        eligible_ids: frozenset[DeviceId] | None,
    ) -> _Grant:
        """Allocates one plugin's part; cached, because it depends only on the free devices and the hint."""
        alloc_map = self._maps[plugin]
        slot, quantity = next(iter(requested_slots.items()))
        pool = alloc_map.pools.get(slot)
        is_single_slot = len(requested_slots) == 1
        if self._memo is None or not is_single_slot or pool is None or not pool.free_levels or pool.free_levels[-1] > 1:
            return self._make_grant(plugin, (), alloc_map.grant(requested_slots, hint, eligible_ids), hint)
        # Only of devices that are taken as a whole: amounts of larger ones differ too much to come again.
        cache_key = slot, quantity, hint.numa_nodes, pool.levels[1], eligible_ids
        cached_grant = self._memo.get(cache_key)
        if cached_grant is None:
            granted_slots = alloc_map.grant(requested_slots, hint, eligible_ids)
            if len(self._memo) >= _MAX_CACHED_GRANTS:
                self._memo.clear()
            parts = [(alloc_map.ranks[device_id], 1) for device_id in granted_slots[slot]]
            cached_grant = self._memo[cache_key] = self._make_grant(plugin, parts, granted_slots, hint)
        else:
            pool.take_whole(cached_grant.parts)
        return cached_grant

    def _make_grant(
        self,
        plugin: str,
        parts: Parts,
        granted_slots: Mapping[SlotName, Mapping[DeviceId, Decimal]],
        hint: AffinityHint,
    ) -> _Grant:
        node_of_device = self._nodes.get(plugin)
        if not node_of_device:
            return _Grant(parts, granted_slots, _NO_NUMA_NODES, hint)
        nodes = frozenset(
            [
                node_of_device[device_id]
                for quantity_of_device in granted_slots.values()
                for device_id in quantity_of_device
                if device_id in node_of_device
            ]
        )
        next_hint = hint if nodes <= hint.numa_nodes else AffinityHint(numa_nodes=hint.numa_nodes | nodes)
        return _Grant(parts, granted_slots, nodes, next_hint)

    def _split_by_map(self, allocation: DeviceAllocation) -> list[tuple[AbstractAllocMap, DeviceAllocation]]:
        slots_of_plugin: dict[str, dict[SlotName, Mapping[DeviceId, Decimal]]] = {}
        for slot, quantity_of_device in allocation.slots.items():
            plugin = self._owners.get(slot)
            if plugin is None:
                raise InvalidAllocation(f"there is no slot {slot} here", data={"slot": slot})
            slots_of_plugin.setdefault(plugin, {})[slot] = quantity_of_device
        return [
            (self._maps[plugin_name], DeviceAllocation(slots=slots)) for plugin_name, slots in slots_of_plugin.items()
        ]

    def apply(self, allocation: DeviceAllocation) -> None:
        """Takes exactly the devices and quantities of an allocation. Raises InvalidAllocation."""
        applied_parts: list[tuple[AbstractAllocMap, DeviceAllocation]] = []
        try:
            for alloc_map, plugin_allocation in self._split_by_map(allocation):
                alloc_map.apply(plugin_allocation)
                applied_parts.append((alloc_map, plugin_allocation))
        except BaseException:
            for alloc_map, plugin_allocation in applied_parts:
                alloc_map.free(plugin_allocation)
            raise

    def free(self, allocation: DeviceAllocation) -> None:
        """Releases exactly the devices and quantities of an allocation. Raises InvalidAllocation."""
        freed_parts: list[tuple[AbstractAllocMap, DeviceAllocation]] = []
        try:
            for alloc_map, plugin_allocation in self._split_by_map(allocation):
                alloc_map.free(plugin_allocation)
                freed_parts.append((alloc_map, plugin_allocation))
        except BaseException:
            for alloc_map, plugin_allocation in freed_parts:
                alloc_map.apply(plugin_allocation)
            raise

    def verify_or_rebind(
        self,
        request: ResourceSlot,
        plan: DeviceAllocation,
        *,
        requirements: Sequence[VariantProperty] = (),
        device_requests: Sequence[DeviceRequest] = (),
    ) -> DeviceAllocation:
        """Takes the devices of a plan if they are still usable, and otherwise chooses other devices.

        The plan may be older than the present devices.

        The plan is taken as it is if possible, and devices are chosen for what it leaves open. If a planned device is
        removed, taken, unhealthy, or does not satisfy the requirements, devices are chosen for the whole request. Of
        several device requests the plan satisfies any, and the first that can be served is chosen otherwise; those with
        other amounts than the request are not considered.

        Raises:
            InvalidAllocation: the plan is not one of this request.
            UnsupportedResource, InsufficientResource ...: as :meth:`allocate`; of the last device request.
        """
        requested_slots = request.nonzero()
        for slot in plan.slots:
            if plan.total(slot) != requested_slots[slot]:
                raise InvalidAllocation(
                    f"the plan has {plan.total(slot)} {slot}, the request {requested_slots[slot]}", data={"slot": slot}
                )
        refusal: Exception | None = None
        alternatives: Sequence[DeviceRequest | None] = [None]
        if device_requests:
            alternatives = alternatives_with(requested_slots, device_requests)
        for bind in (self._bind_plan, self._bind_other_devices):
            for device_request in alternatives:
                try:
                    prepared = self.prepare(request, requirements, device_request)
                    bound_allocation = bind(prepared, plan)
                except (ResourceError, InvalidQuantity) as e:
                    refusal = e
                    continue
                if bound_allocation is not None:
                    return bound_allocation
        raise refusal or InvalidAllocation("no device request has the amounts of the request")

    def _bind_other_devices(self, prepared: PreparedRequest, plan: DeviceAllocation) -> DeviceAllocation | None:
        return self.take(prepared)

    def _bind_plan(self, prepared: PreparedRequest, plan: DeviceAllocation) -> DeviceAllocation | None:
        """Takes the devices of a plan, and chooses devices for the parts that the plan leaves open.

        Returns None if it is impossible now.
        """
        missing_of_plugin = {
            plugin: missing_slots
            for plugin, slots in prepared.requested.items()
            if (missing_slots := {slot: slots[slot] for slot in slots if slot not in plan.slots})
        }
        try:
            self._check_planned_devices(plan, prepared.selections)
            self.apply(plan)
        except InvalidAllocation:
            return None
        try:
            rest_allocation = self._allocate(
                missing_of_plugin, AffinityHint(numa_nodes=self.numa_nodes(plan)), prepared.selections
            )
        except (ResourceError, InvalidQuantity):
            self.free(plan)
            return None
        return DeviceAllocation(slots={**plan.slots, **rest_allocation.slots})

    def _check_planned_devices(self, plan: DeviceAllocation, selections: Mapping[str, Selection]) -> None:
        """Raises InvalidAllocation if a planned device is not healthy, or if the planned devices may not be given
        together, which :meth:`apply` ignores."""
        planned_ids: dict[str, frozenset[DeviceId]] = {}
        for slot, quantity_of_device in plan.slots.items():
            plugin = self._owners.get(slot, "")
            if not self._unhealthy.get(plugin, set()).isdisjoint(quantity_of_device):
                raise InvalidAllocation("a planned device is not healthy any more", data={"slot": slot})
            planned_ids[plugin] = planned_ids.get(plugin, frozenset()) | quantity_of_device.keys()
        for plugin, device_ids in planned_ids.items():
            if plugin in selections and not selections[plugin].allows(device_ids):
                raise InvalidAllocation("a planned device does not satisfy the requirements", data={"plugin": plugin})

    def adopt(self, held_slots: ResourceSlot, allocation: DeviceAllocation) -> DeviceAllocation:
        """Counts the devices of an existing workload as taken, as far as the present devices allow. Never raises.

        Its devices are taken where they still exist and have room. What is held beyond them of slots that exist (a plan
        that only counts, a device that is removed) is taken from any device. Returns what was taken, for :meth:`free`.
        """
        taken_slots: dict[SlotName, dict[DeviceId, Decimal]] = {}
        for slot, quantity_of_device in allocation.slots.items():
            for device_id, quantity in quantity_of_device.items():
                device_part = DeviceAllocation(slots={slot: {device_id: quantity}})
                try:
                    self.apply(device_part)
                except InvalidAllocation:
                    continue
                taken_slots.setdefault(slot, {})[device_id] = quantity
        for name, quantity in held_slots.nonzero().items():
            slot = SlotName(name)
            missing_quantity = quantity - sum(taken_slots.get(slot, {}).values(), Decimal(0))
            if missing_quantity <= 0 or slot not in self._owners:
                continue
            try:
                extra_allocation = self._allocate(self._split(ResourceSlot({slot: missing_quantity})), NO_HINT, {})
            except (ResourceError, InvalidQuantity):
                continue
            for device_id, added_quantity in extra_allocation.slots[slot].items():
                taken_of_device = taken_slots.setdefault(slot, {})
                taken_of_device[device_id] = taken_of_device.get(device_id, Decimal(0)) + added_quantity
        return DeviceAllocation(slots=taken_slots)

    def snapshot(self) -> dict[str, Any]:
        return {name: alloc_map.snapshot() for name, alloc_map in self._maps.items()}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        for name, map_snapshot in snapshot.items():
            self._maps[name].restore(map_snapshot)


def _uncut_devices(devices: Sequence[ComputeDevice]) -> dict[SlotName, frozenset[DeviceId]]:
    """Returns, for each slot that can be cut of a device, the devices that offer the slot without being cut."""
    cut_slots = {slot.slot_name for device in devices for slot in device.slots if slot.counters}
    return {
        name: frozenset(
            device.device_id
            for device in devices
            if any(slot.slot_name == name and not slot.counters for slot in device.slots)
        )
        for name in cut_slots
    }


def _free_quanta(pool: SlotPool | None, rank: int | None) -> int:
    return 0 if pool is None or rank is None else pool.free[rank]


def _available_quantity(refusal: InsufficientResource) -> Decimal:
    """Returns how much of the slot was free on the devices that a refused request could be given."""
    return Decimal(refusal.data.get("available", 0))


def without_placeholders(allocation: DeviceAllocation) -> DeviceAllocation:
    """Returns a copy of an allocation without the slots whose devices the agent chooses.

    The copy is a plan for an agent.
    """
    return DeviceAllocation(
        slots={
            slot: dict(quantity_of_device)
            for slot, quantity_of_device in allocation.slots.items()
            if ANY_DEVICE not in quantity_of_device
        }
    )
