"""Defines the stock alloc maps: for whole units, for shares of devices, and for plugins with a map of their own."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest

from ai.backend.common.devices import AllocationStrategy, AllocMapSpec, ComputeDevice, DeviceSlot
from ai.backend.common.errors import InsufficientResource, InvalidInput
from ai.backend.common.ids import DeviceId, DeviceName
from ai.backend.common.slots import format_quantity
from ai.backend.common.states import SlotType
from ai.backend.core.allocation.alloc_map import AffinityHint
from ai.backend.core.allocation.ledger import Eligible, LedgerAllocMap
from ai.backend.core.allocation.numa import divide_evenly
from ai.backend.core.allocation.slot_pool import Parts, SlotPool, ranks

ANY_DEVICE = DeviceId("*")
"""Placeholder for devices that the agent will choose. Never leaves the scheduler."""


class DiscreteAllocMap(LedgerAllocMap):
    """Divides a request into whole units over the devices of the NUMA nodes that :class:`LedgerAllocMap` chooses.

    FILL: the devices with the most free first, so that it comes from as few devices as possible. EVENLY: equal parts of
    every device (those with the most free give the remainder). LEAST_FRAGMENTATION: the fullest device that has room
    for all of it; else as FILL, but the last part comes from the fullest device that has room for it. Among devices
    with equally much free links decide, then the plugin's order. INTERLEAVED: equal parts of every node, each divided
    so. O(distinct free amounts + devices that give).
    """

    def _pick(self, pool: SlotPool, quanta: int, device_mask: int, largest_device_quanta: int) -> Parts | None:
        if not device_mask & (device_mask - 1):
            # One device, or none: there is nothing to divide.
            rank = device_mask.bit_length() - 1
            return [(rank, quanta)] if device_mask and pool.free[rank] >= quanta else None
        if pool.free_levels and pool.free_levels[-1] == 1:
            # No device has more than one: every strategy takes one of each of so many devices.
            mask = pool.levels[1] & device_mask
            return [(rank, 1) for rank in self._select(pool, mask, quanta)] if mask.bit_count() >= quanta else None
        if pool.cut_mask & device_mask:
            return self._fill_devices(pool, quanta, device_mask, is_tight=True)  # keeps whole what is not cut yet
        if self._strategy is AllocationStrategy.EVENLY:
            return self._pick_evenly(pool, quanta, device_mask)
        return self._fill_devices(
            pool, quanta, device_mask, is_tight=self._strategy is AllocationStrategy.LEAST_FRAGMENTATION
        )

    def _interleave(
        self, pool: SlotPool, quanta: int, node_masks: Sequence[int], largest_device_quanta: int
    ) -> Parts | None:
        parts: list[tuple[int, int]] = []
        for mask, node_quanta in zip(
            node_masks, divide_evenly([pool.free_quanta(mask) for mask in node_masks], quanta), strict=True
        ):
            parts += (node_quanta and self._pick(pool, node_quanta, mask, largest_device_quanta)) or ()
        return parts

    def _pick_evenly(self, pool: SlotPool, quanta: int, device_mask: int) -> Parts | None:
        """Takes parts so that the devices' free amounts become level.

        A device below the level gives all that is free.
        """
        parts: list[tuple[int, int]] = []
        free_levels = [(level, mask) for level in pool.free_levels if (mask := pool.levels[level] & device_mask)]
        device_count = sum([mask.bit_count() for _, mask in free_levels])
        for index, (level, mask) in enumerate(free_levels):
            if level * device_count > quanta:
                share, remainder = divmod(quanta, device_count)
                return parts + self._take_top(pool, free_levels[index:], share, remainder)
            parts += [(rank, level) for rank in ranks(mask)]
            quanta -= level * mask.bit_count()
            device_count -= mask.bit_count()
        return None if quanta else parts

    def _take_top(
        self, pool: SlotPool, free_levels: Sequence[tuple[int, int]], share: int, extra_count: int
    ) -> list[tuple[int, int]]:
        """Takes ``share`` of every device, and one more of the ``extra_count`` devices that have the most."""
        larger_ranks: list[int] = []
        for _, mask in reversed(free_levels):
            if len(larger_ranks) == extra_count:
                break
            larger_ranks += self._select(
                pool, mask, min(extra_count - len(larger_ranks), mask.bit_count()), larger_ranks
            )
        parts = [(rank, share + 1) for rank in larger_ranks]
        if share:
            larger_rank_set = set(larger_ranks)
            parts += [(rank, share) for _, mask in free_levels for rank in ranks(mask) if rank not in larger_rank_set]
        return parts

    def _fill_devices(self, pool: SlotPool, quanta: int, device_mask: int, *, is_tight: bool) -> Parts | None:
        chosen_ranks: list[int] = []
        parts: list[tuple[int, int]] = []
        for level in reversed(pool.free_levels):
            if not (mask := pool.levels[level] & device_mask):
                continue
            whole_count = min(mask.bit_count(), -(-quanta // level) - is_tight)
            if whole_count:
                selected_ranks = self._select(pool, mask, whole_count, chosen_ranks)
                chosen_ranks += selected_ranks
                parts += [(rank, level) for rank in selected_ranks]
                quanta -= whole_count * level
            if quanta <= 0:
                # The last device gives only what is left.
                parts[-1] = (chosen_ranks[-1], level + quanta)
                return parts
            if is_tight and whole_count < mask.bit_count():
                for rank in chosen_ranks:
                    device_mask &= ~(1 << rank)
                last_ranks = self._select(pool, pool.fullest_mask(device_mask, quanta), 1, chosen_ranks)
                return [*parts, (last_ranks[0], quanta)]
        return None


class FractionalAllocMap(LedgerAllocMap):
    """Divides a request into nearly equal shares only if no single device can hold the request. Shares differ by at
    most a quantum.

    "Could hold" means the largest healthy eligible device, free or not: a program that asked for a part of a device
    does not expect two. A larger request takes as few devices as possible. EVENLY takes the devices with the most free,
    the other strategies the fullest ones that have room, unless others with room are linked better. INTERLEAVED: the
    devices of a larger request come in turn from every node. O(distinct free amounts + devices that give).
    """

    def _pick(self, pool: SlotPool, quanta: int, device_mask: int, largest_device_quanta: int) -> Parts | None:
        if quanta <= largest_device_quanta or pool.slot_type is SlotType.UNIQUE:
            return self._pick_single(pool, quanta, device_mask)
        division = _divide(pool, quanta, device_mask, largest_device_quanta)
        if division is None:
            return None
        device_count, share, larger_count = division
        larger_ranks = self._pick_ranks(pool, device_mask, share + 1, larger_count, [])
        for rank in larger_ranks:
            device_mask &= ~(1 << rank)
        smaller_ranks = self._pick_ranks(pool, device_mask, share, device_count - larger_count, larger_ranks)
        return [(rank, share + 1) for rank in larger_ranks] + [(rank, share) for rank in smaller_ranks]

    def _interleave(
        self, pool: SlotPool, quanta: int, node_masks: Sequence[int], largest_device_quanta: int
    ) -> Parts | None:
        if quanta <= largest_device_quanta or pool.slot_type is SlotType.UNIQUE:
            return next(
                (
                    single_part
                    for device_mask in node_masks
                    if (single_part := self._pick_single(pool, quanta, device_mask)) is not None
                ),
                None,
            )
        division = _divide(pool, quanta, sum(node_masks), largest_device_quanta)
        if division is None:
            return None
        device_count, share, larger_count = division
        parts: list[tuple[int, int]] = []
        for part_quanta, part_count in ((share + 1, larger_count), (share, device_count - larger_count)):
            taken_ranks = {rank for rank, _ in parts}
            ranks_per_node = (
                [
                    rank
                    for mask in self._level_masks(pool, device_mask, part_quanta)
                    for rank in ranks(mask)
                    if rank not in taken_ranks
                ]
                for device_mask in node_masks
            )
            ranks_in_turn = (rank for rank in chain.from_iterable(zip_longest(*ranks_per_node)) if rank is not None)
            parts += [(rank, part_quanta) for rank, _ in zip(ranks_in_turn, range(part_count), strict=False)]
        return parts

    def _pick_single(self, pool: SlotPool, quanta: int, device_mask: int) -> Parts | None:
        if self._strategy is AllocationStrategy.EVENLY and not pool.cut_mask & device_mask:
            most_free = pool.most_free_quanta(device_mask)
            candidate_mask = pool.levels[most_free] & device_mask if most_free >= quanta else 0
        else:
            candidate_mask = pool.fullest_mask(device_mask, quanta)
        return [(self._select(pool, candidate_mask, 1)[0], quanta)] if candidate_mask else None

    def _pick_ranks(
        self, pool: SlotPool, device_mask: int, share: int, count: int, taken_ranks: Sequence[int]
    ) -> Sequence[int]:
        preferred_ranks: list[int] = []
        for mask in self._level_masks(pool, device_mask, share):
            if len(preferred_ranks) == count:
                break
            missing_count = min(count - len(preferred_ranks), mask.bit_count())
            preferred_ranks += self._select(pool, mask, missing_count, [*taken_ranks, *preferred_ranks])
        if self._links is None or count + len(taken_ranks) < 2:
            return preferred_ranks
        linked_ranks = self._select(pool, pool.mask_with_room(device_mask, share), count, taken_ranks)
        preferred_cost, linked_cost = (
            self._links.cost_of((*taken_ranks, *candidate_ranks), 0)[0]
            for candidate_ranks in (preferred_ranks, linked_ranks)
        )
        return preferred_ranks if preferred_cost <= linked_cost else linked_ranks

    def _level_masks(self, pool: SlotPool, device_mask: int, share: int) -> Iterator[int]:
        """Yields masks of the devices that have room for a share, one mask for each free amount.

        The masks come in the strategy's order.
        """
        levels = pool.free_levels[bisect_left(pool.free_levels, share) :]
        if self._strategy is AllocationStrategy.EVENLY:
            levels.reverse()
        return (pool.levels[level] & device_mask for level in levels)


def _divide(pool: SlotPool, quanta: int, device_mask: int, largest_device_quanta: int) -> tuple[int, int, int] | None:
    """Returns how to divide a quantity over the fewest devices: (devices, share, devices with one quantum more).

    Returns None if no division fits.
    """
    if not largest_device_quanta:
        return None
    # For each free amount, how many devices have at least so much free.
    counts_by_level: list[tuple[int, int]] = []
    device_count = 0
    for level in reversed(pool.free_levels):
        if mask := pool.levels[level] & device_mask:
            device_count += mask.bit_count()
            counts_by_level.append((level, device_count))
    for divisor in range(-(-quanta // largest_device_quanta), device_count + 1):
        share, larger_count = divmod(quanta, divisor)
        if not share:
            return None
        if (
            _count_devices_with(counts_by_level, share) >= divisor
            and _count_devices_with(counts_by_level, share + 1) >= larger_count
        ):
            return divisor, share, larger_count
    return None


def _count_devices_with(counts_by_level: Sequence[tuple[int, int]], quanta: int) -> int:
    return max([device_count for level, device_count in counts_by_level if level >= quanta], default=0)


class OpaqueAllocMap(LedgerAllocMap):
    """Counts the sum of each slot over healthy devices as if the sum were one device, :data:`ANY_DEVICE`.

    A request that is restricted to some devices is compared with their sizes only, as their use is not known.
    """

    def __init__(self, devices: Sequence[ComputeDevice]) -> None:
        """Sums the devices of each slot. Raises InvalidAllocation as :class:`LedgerAllocMap` does."""
        super().__init__(devices)
        self._sizes = {
            name: {
                device: total_quanta
                for device, total_quanta, is_healthy in zip(self._ids, pool.amounts, self._healthy, strict=True)
                if is_healthy
            }
            for name, pool in self._pools.items()
        }
        slots = tuple(
            DeviceSlot(
                slot_name=pool.name, slot_type=pool.slot_type, amount=pool.quantity(pool.total), quantum=pool.quantum
            )
            for pool in self._pools.values()
        )
        total_device = ComputeDevice(device_name=DeviceName("pool"), device_id=ANY_DEVICE, hw_location="", slots=slots)
        super().__init__([total_device])

    def _choose_parts(self, pool: SlotPool, quanta: int, hint: AffinityHint, eligible_ids: Eligible) -> Parts:
        sizes = self._sizes[pool.name]
        eligible_quanta = (
            pool.total_free
            if eligible_ids is None
            else sum(quanta_amount for device, quanta_amount in sizes.items() if device in eligible_ids)
        )
        if quanta > min(pool.total_free, eligible_quanta):
            requested_text, available_text = (
                format_quantity(pool.quantity(quanta_amount))
                for quanta_amount in (quanta, min(pool.total_free, eligible_quanta))
            )
            raise InsufficientResource(
                f"needs {requested_text} {pool.name}; at most {available_text} free",
                data={"slot": pool.name, "requested": requested_text, "available": available_text},
            )
        return self._pick(pool, quanta, self._all, pool.largest)

    def _pick(self, pool: SlotPool, quanta: int, device_mask: int, largest_device_quanta: int) -> Parts:
        return [(0, quanta)]

    def _interleave(self, pool: SlotPool, quanta: int, node_masks: Sequence[int], largest_device_quanta: int) -> Parts:
        return [(0, quanta)]


STOCK_MAPS = {"discrete": DiscreteAllocMap, "fractional": FractionalAllocMap}


def build_alloc_map(spec: AllocMapSpec, devices: Sequence[ComputeDevice]) -> LedgerAllocMap:
    """Returns an empty stock map over these devices.

    Raises:
        InvalidInput: there is no stock map of this kind.
        InvalidAllocation: the devices contradict each other.
    """
    map_class = STOCK_MAPS.get(spec.kind)
    if map_class is None:
        raise InvalidInput(f"unknown kind of alloc map {spec.kind!r}; known are {', '.join(STOCK_MAPS)}")
    return map_class(devices, strategy=spec.strategy, affinity_policy=spec.affinity_policy)
