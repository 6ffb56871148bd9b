"""Defines the base of the stock alloc maps, which counts allocations and tries the preferred NUMA nodes first.

Invariants, after every public call:

* ``0 <= used <= amount`` of every slot of every device;
* of the slots of one device that name the same exclusive group, at most one is used, or several that are cut of it when
  they are given (``counters``), and of these together no more than each counter of the device holds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Self

from ai.backend.common.devices import (
    AffinityPolicy,
    AllocationStrategy,
    ComputeDevice,
    DeviceAllocation,
    DeviceHealth,
    DeviceSlot,
)
from ai.backend.common.errors import (
    InsufficientResource,
    InvalidAllocation,
    InvalidQuantity,
    NotMultipleOfQuantum,
    ResourceError,
    UnsupportedResource,
)
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.common.slots import format_quantity
from ai.backend.common.states import SlotType
from ai.backend.core.allocation.alloc_map import NO_HINT, AbstractAllocMap, AffinityHint
from ai.backend.core.allocation.links import links_of
from ai.backend.core.allocation.numa import fewest_nodes, node_sort_key, order_nodes
from ai.backend.core.allocation.slot_pool import MAX_DIGITS, MAX_QUANTA, ExclusiveGroup, Parts, SlotPool, lowest, ranks

Eligible = frozenset[DeviceId] | None
_MAX_ELIGIBLE_MASKS = 4096


class LedgerAllocMap(AbstractAllocMap):
    """Counts the allocations of a stock alloc map. Subclasses divide a quantity over devices (:meth:`_pick`).

    Where to look is decided here. PREFER_SINGLE_NODE: on one NUMA node if one can serve the request, else on as few as
    possible; where links between the devices are known, the place with the best-linked set wins, also across nodes, and
    among equals the one that leaves the best links free. INTERLEAVED: subclasses divide over the nodes
    (:meth:`_interleave`).
    """

    def __init__(
        self,
        devices: Sequence[ComputeDevice],
        *,
        strategy: AllocationStrategy = AllocationStrategy.EVENLY,
        affinity_policy: AffinityPolicy = AffinityPolicy.PREFER_SINGLE_NODE,
    ) -> None:
        """Indexes devices. Raises InvalidAllocation if they repeat an id, or disagree on a slot's type or quantum."""
        self._strategy = strategy
        self._affinity = affinity_policy
        self._ids = [device.device_id for device in devices]
        self._ranks = {device_id: rank for rank, device_id in enumerate(self._ids)}
        for rank, device_id in enumerate(self._ids):
            if self._ranks[device_id] != rank:
                raise InvalidAllocation(f"two devices have the id {device_id!r}")
        self._ranks_with_partitions = {
            **{partition_id: rank for rank, device in enumerate(devices) for partition_id in device.partition_ids},
            **self._ranks,
        }
        self._healthy = [device.health is DeviceHealth.HEALTHY for device in devices]
        self._all = (1 << len(devices)) - 1
        self._nodes: dict[int | None, int] = {}
        self._links = links_of(devices)
        self._eligible_masks: dict[tuple[SlotName, frozenset[DeviceId]], tuple[int, int]] = {}
        self._pools: dict[SlotName, SlotPool] = {}
        groups: dict[tuple[int, str], ExclusiveGroup] = {}
        for rank, device in enumerate(devices):
            self._nodes[device.numa_node] = self._nodes.get(device.numa_node, 0) | 1 << rank
            for slot in device.slots:
                pool = self._add_slot(rank, device, slot)
                if slot.exclusive_group is not None:
                    group_key = rank, slot.exclusive_group
                    group = groups.setdefault(group_key, ExclusiveGroup(left=dict(device.counters)))
                    pool.join(rank, group, slot.counters)
        for pool in self._pools.values():
            pool.seal()

    def _add_slot(self, rank: int, device: ComputeDevice, slot: DeviceSlot) -> SlotPool:
        pool = self._pools.get(slot.slot_name)
        if pool is None:
            if not slot.quantum.is_finite() or slot.quantum <= 0:
                raise InvalidAllocation(f"device {device.device_id!r} offers a malformed quantum of {slot.slot_name}")
            pool = SlotPool(slot.slot_name, slot.slot_type, slot.quantum, len(self._ids))
            self._pools[slot.slot_name] = pool
        if pool.slot_type is not slot.slot_type or pool.quantum != slot.quantum or pool.offers_mask >> rank & 1:
            raise InvalidAllocation(f"devices disagree about the type or quantum of {slot.slot_name}")
        amount = pool.quanta(slot.amount)
        if amount is None and slot.amount.adjusted() <= MAX_DIGITS:
            # What is left over below one quantum can never be given away.
            amount = int(Fraction(slot.amount) / Fraction(slot.quantum))
        if amount is None or not 0 <= amount <= MAX_QUANTA:
            raise InvalidAllocation(f"device {device.device_id!r} offers a malformed amount of {slot.slot_name}")
        if slot.counters:
            amount = min(amount, _max_partitions(device, slot))
        pool.add(rank, amount, healthy=self._healthy[rank])
        return pool

    def clone(self) -> Self:
        """Returns an independent copy in the same state; immutable parts are shared."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._pools = {name: pool.clone() for name, pool in self._pools.items()}
        groups: dict[int, ExclusiveGroup] = {}
        for name, pool in self._pools.items():
            for rank, group in pool.groups.items() if pool.groups else ():
                group_copy = groups.get(id(group))
                if group_copy is None:
                    group_copy = groups[id(group)] = group.clone()
                copy._pools[name].groups[rank] = group_copy
                group_copy.pools.append(copy._pools[name])
        return copy

    # ---- reading

    @property
    def pools(self) -> Mapping[SlotName, SlotPool]:
        return self._pools

    @property
    def ranks(self) -> Mapping[DeviceId, int]:
        return self._ranks

    @property
    def totals(self) -> Mapping[SlotName, Decimal]:
        return {name: pool.quantity(pool.total) for name, pool in self._pools.items()}

    def available(self) -> Mapping[SlotName, Decimal]:
        return {name: pool.quantity(pool.total_free) for name, pool in self._pools.items()}

    # ---- choosing

    @abstractmethod
    def _pick(self, pool: SlotPool, quanta: int, device_mask: int, largest_device_quanta: int) -> Parts | None:
        """Returns the parts that serve a request from the devices of a mask; None if they cannot.

        ``largest_device_quanta`` is the size of the largest healthy device that may be given at all, free or not.
        """

    @abstractmethod
    def _interleave(
        self, pool: SlotPool, quanta: int, node_masks: Sequence[int], largest_device_quanta: int
    ) -> Parts | None:
        """Divides a quantity in turn over the devices of each NUMA node's mask, the preferred masks first.

        The result is as of :meth:`_pick`.
        """

    def _select(
        self, pool: SlotPool, candidate_mask: int, count: int, taken_ranks: Sequence[int] = ()
    ) -> Sequence[int]:
        """Selects the ``count`` devices of a mask that are best linked with each other and with ``taken_ranks``.

        The strategy ranks the devices of the mask equal. Without known links, the devices of lowest rank are selected.
        """
        if self._links is None or count == candidate_mask.bit_count():
            return lowest(candidate_mask, count)
        return self._links.choose(candidate_mask, count, taken_ranks, pool.any_free_mask)

    def _choose_parts(self, pool: SlotPool, quanta: int, hint: AffinityHint, eligible_ids: Eligible) -> Parts:
        device_mask, largest_device_quanta = self._all, pool.largest
        if eligible_ids is not None:
            device_mask, largest_device_quanta = self._eligible_mask(pool, eligible_ids)
        parts = None
        if quanta <= (pool.total_free if eligible_ids is None else pool.free_quanta(device_mask)):
            if len(self._nodes) == 1:
                parts = self._pick(pool, quanta, device_mask, largest_device_quanta)
            else:
                parts = self._pick_on_nodes(pool, quanta, device_mask, largest_device_quanta, hint)
        if parts is None:
            raise self._shortage_error(
                pool, quanta, device_mask, largest_device_quanta, is_restricted=eligible_ids is not None
            )
        return parts

    def _eligible_mask(self, pool: SlotPool, eligible_ids: frozenset[DeviceId]) -> tuple[int, int]:
        """Returns the mask of some devices and the size of the largest healthy one; cached, shared with clones."""
        cache_key = pool.name, eligible_ids
        mask_and_largest = self._eligible_masks.get(cache_key)
        if mask_and_largest is None:
            device_mask = sum(
                1 << rank for device_id in eligible_ids if (rank := self._ranks.get(device_id)) is not None
            )
            offering_ranks = ranks(device_mask & pool.offers_mask)
            largest_device_quanta = max(
                (pool.amounts[rank] for rank in offering_ranks if self._healthy[rank]), default=0
            )
            if len(self._eligible_masks) >= _MAX_ELIGIBLE_MASKS:
                self._eligible_masks.clear()
            mask_and_largest = self._eligible_masks[cache_key] = device_mask, largest_device_quanta
        return mask_and_largest

    def _pick_on_nodes(
        self, pool: SlotPool, quanta: int, device_mask: int, largest_device_quanta: int, hint: AffinityHint
    ) -> Parts | None:
        """Returns the parts that serve a request from one NUMA node if possible, else from several; None if none can.

        The first node that fits in the order of :func:`order_nodes` serves it; if links are known, the place with the
        best-linked devices; with INTERLEAVED, all nodes in that order.
        """
        if self._links is None and self._affinity is AffinityPolicy.PREFER_SINGLE_NODE:
            best_node: tuple[tuple[int, int, int], int] | None = None
            for node, mask in self._nodes.items():
                free_quanta = pool.free_quanta(mask & device_mask)
                if free_quanta >= quanta:
                    sort_key = node_sort_key(node, free_quanta, hint, self._strategy)
                    if best_node is None or sort_key < best_node[0]:
                        best_node = sort_key, mask & device_mask
            if (
                best_node is not None
                and (parts := self._pick(pool, quanta, best_node[1], largest_device_quanta)) is not None
            ):
                return parts
        free_of_node = {
            node: free_quanta
            for node, mask in self._nodes.items()
            if (free_quanta := pool.free_quanta(mask & device_mask))
        }
        ordered_nodes = order_nodes(free_of_node, hint, self._strategy)
        if self._affinity is AffinityPolicy.INTERLEAVED:
            node_masks = [self._nodes[node] & device_mask for _, node in ordered_nodes]
            return self._interleave(pool, quanta, node_masks, largest_device_quanta)
        masks_to_try = [
            (closeness, self._nodes[node] & device_mask)
            for closeness, node in ordered_nodes
            if free_of_node[node] >= quanta
        ]
        if not masks_to_try:
            masks_to_try.append(
                (3, sum([self._nodes[node] & device_mask for node in fewest_nodes(free_of_node, quanta)]))
            )
        masks_to_try.append((4, device_mask))
        if self._links is None:
            fitting_parts = (
                parts
                for _, tried_mask in masks_to_try
                if (parts := self._pick(pool, quanta, tried_mask, largest_device_quanta)) is not None
            )
            return next(fitting_parts, None)
        best_parts: Parts | None = None
        least_badness: tuple[int, ...] = ()
        for closeness, tried_mask in masks_to_try:
            parts = self._pick(pool, quanta, tried_mask, largest_device_quanta)
            if parts is not None:
                link_cost, separation_loss = self._links.cost_of(tuple([rank for rank, _ in parts]), pool.any_free_mask)
                badness = (len(parts), link_cost, closeness, separation_loss)
                if best_parts is None or badness < least_badness:
                    best_parts, least_badness = parts, badness
        return best_parts

    # ---- the interface

    def allocate(
        self, request: Mapping[SlotName, Decimal], *, hint: AffinityHint = NO_HINT, eligible: Eligible = None
    ) -> DeviceAllocation:
        return DeviceAllocation(slots=self.grant(request, hint, eligible))

    def grant(
        self, request: Mapping[SlotName, Decimal], hint: AffinityHint, eligible: Eligible
    ) -> dict[SlotName, Mapping[DeviceId, Decimal]]:
        """Allocates like :meth:`allocate`, but returns the allocation as slot -> device -> quantity.

        This is the form of ``DeviceAllocation.slots``.
        """
        granted_slots: dict[SlotName, Mapping[DeviceId, Decimal]] = {}
        device_ids = self._ids
        taken_parts: list[tuple[SlotPool, Parts]] = []
        has_several_slots = len(request) > 1
        try:
            # Slots that few devices have first, before other slots could hide them.
            for name in (
                sorted(request, key=lambda slot: (self._count_free_devices(slot), slot))
                if has_several_slots
                else request
            ):
                if not (quantity := request[name]):
                    continue
                pool, quanta = self._parse_quantity(name, quantity)
                parts = self._choose_parts(pool, quanta, hint, eligible)
                pool.change(parts, 1)
                if has_several_slots:
                    taken_parts.append((pool, parts))
                    hint = self._hint_near_held(parts, hint)
                granted_slots[name] = {device_ids[rank]: pool.quantity(part_quanta) for rank, part_quanta in parts}
        except (ResourceError, InvalidQuantity):
            for pool, parts in taken_parts:
                pool.change(parts, -1)
            raise
        return granted_slots

    def _hint_near_held(self, parts: Parts, hint: AffinityHint) -> AffinityHint:
        """Returns a hint by which further devices are chosen near the ``parts`` that a kernel holds."""
        chosen_mask = sum([1 << rank for rank, _ in parts])
        nodes = {node for node, mask in self._nodes.items() if node is not None and mask & chosen_mask}
        return AffinityHint(numa_nodes=hint.numa_nodes | nodes)

    def _count_free_devices(self, name: SlotName) -> int:
        pool = self._pools.get(name)
        return pool.any_free_mask.bit_count() if pool is not None else 0

    def _parse_quantity(self, name: SlotName, quantity: Decimal) -> tuple[SlotPool, int]:
        pool = self._pools.get(name)
        if pool is None:
            raise UnsupportedResource(f"There is no slot {name} here.", data={"slot": name})
        quanta = pool.quanta(quantity)
        if quanta is None:
            raise NotMultipleOfQuantum(
                f"{format_quantity(quantity)} {name} is not a multiple of {format_quantity(pool.quantum)}.",
                data={"slot": name, "quantum": format_quantity(pool.quantum)},
            )
        if quanta <= 0:
            raise InvalidQuantity(f"{name}: not a quantity that a device gives", data={"slot": name})
        if quanta != 1 and pool.slot_type is SlotType.UNIQUE:
            raise InvalidQuantity(f"{name} is unique: only one of it can be requested", data={"slot": name})
        return pool, quanta

    def _shortage_error(
        self, pool: SlotPool, quanta: int, device_mask: int, largest_device_quanta: int, *, is_restricted: bool
    ) -> InsufficientResource:
        free_quanta, most_free = pool.free_quanta(device_mask), pool.most_free_quanta(device_mask)
        requested_text, available_text, largest_free = (
            format_quantity(pool.quantity(amount)) for amount in (quanta, free_quanta, most_free)
        )
        error_data = {"slot": pool.name, "requested": requested_text, "available": available_text}
        where_text = " on the devices that qualify" if is_restricted else ""
        if free_quanta < quanta:
            return InsufficientResource(
                f"needs {requested_text} {pool.name}; {available_text} free{where_text}", data=error_data
            )
        division_text = "on one device" if quanta <= largest_device_quanta else "in equal shares"
        return InsufficientResource(
            f"needs {requested_text} {pool.name} {division_text}; {available_text} free{where_text}, "
            f"at most {largest_free} on one device",
            data={**error_data, "largest": largest_free},
        )

    def _parts_by_pool(self, allocation: DeviceAllocation) -> list[tuple[SlotPool, list[tuple[int, int]]]]:
        parts_of_pools = []
        for name, quantity_of_device in allocation.slots.items():
            pool = self._pools.get(name)
            quanta_of_rank: dict[int, int] = {}
            for device_id, quantity in quantity_of_device.items():
                rank = self._ranks_with_partitions.get(device_id)
                quanta = pool.quanta(quantity) if pool is not None else None
                if pool is None or rank is None or not quanta or quanta < 0 or not pool.offers_mask >> rank & 1:
                    message = f"there is no {format_quantity(quantity)} {name} on device {device_id!r}"
                    raise InvalidAllocation(message, data={"slot": name, "device": device_id})
                quanta_of_rank[rank] = quanta_of_rank.get(rank, 0) + quanta
            if pool is not None:
                parts_of_pools.append((pool, list(quanta_of_rank.items())))
        return parts_of_pools

    def apply(self, allocation: DeviceAllocation) -> None:
        applied_parts: list[tuple[SlotPool, Parts]] = []
        for pool, parts in self._parts_by_pool(allocation):
            for rank, quanta in parts:
                if not pool.has_room(rank, quanta):
                    for applied_pool, pool_parts in applied_parts:
                        applied_pool.change(pool_parts, -1)
                    raise self._mismatch_error(pool, rank, quanta, "has not", " free")
            pool.change(parts, 1)
            applied_parts.append((pool, parts))

    def free(self, allocation: DeviceAllocation) -> None:
        released_parts = self._parts_by_pool(allocation)
        for pool, parts in released_parts:
            for rank, quanta in parts:
                if pool.used[rank] < quanta:
                    raise self._mismatch_error(pool, rank, quanta, "did not give", "")
        for pool, parts in released_parts:
            pool.change(parts, -1)

    def _mismatch_error(self, pool: SlotPool, rank: int, quanta: int, verb: str, suffix: str) -> InvalidAllocation:
        device_id, quantity = self._ids[rank], format_quantity(pool.quantity(quanta))
        message = f"device {device_id!r} {verb} {quantity} {pool.name}{suffix}"
        return InvalidAllocation(message, data={"slot": pool.name, "device": device_id})

    def snapshot(self) -> dict[SlotName, tuple[int, ...]]:
        return {slot_name: tuple(pool.used) for slot_name, pool in self._pools.items()}

    def restore(self, snapshot: Mapping[SlotName, tuple[int, ...]]) -> None:
        for name, stored_quanta in snapshot.items():
            pool = self._pools[name]
            changes = [
                (rank, restored_quanta - present_quanta)
                for rank, (present_quanta, restored_quanta) in enumerate(zip(pool.used, stored_quanta, strict=True))
            ]
            pool.change([(rank, quanta_change) for rank, quanta_change in changes if quanta_change], 1)


def _max_partitions(device: ComputeDevice, slot: DeviceSlot) -> int:
    """Returns how many partitions of one kind fit a whole device according to the device's counters.

    Raises InvalidAllocation.
    """
    counters_left = dict(device.counters)
    if slot.exclusive_group is None or any(
        counter_cost <= 0 or counter not in counters_left for counter, counter_cost in slot.counters
    ):
        raise InvalidAllocation(
            f"device {device.device_id!r} offers {slot.slot_name} of counters that it does not have"
        )
    return max(0, min(counters_left[counter] // counter_cost for counter, counter_cost in slot.counters))
