"""The stock alloc maps: whole units, shares of devices, and sums of devices whose plugin has its own map."""

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
from ai.backend.core.allocation.numa import level_out
from ai.backend.core.allocation.slot_pool import Parts, SlotPool, ranks

ANY_DEVICE = DeviceId("*")
"""Placeholder for devices that the agent will choose. Never leaves the scheduler."""


class DiscreteAllocMap(LedgerAllocMap):
    """Divides a request over the devices of the place that :class:`LedgerAllocMap` found.

    FILL: the devices with the most free first, so that it comes from as few devices as possible. EVENLY: equal parts of
    every device (those with the most free give the remainder). LEAST_FRAGMENTATION: the fullest device that has room
    for all of it; else as FILL, but the last part comes from the fullest device that has room for it. Among devices
    with equally much free links decide, then the plugin's order. INTERLEAVED: equal parts of every node, each divided
    so. O(distinct free amounts + devices that give).
    """

    def _pick(self, pool: SlotPool, quanta: int, scope: int, largest: int) -> Parts | None:
        if not scope & (scope - 1):
            # One device, or none: there is nothing to divide.
            rank = scope.bit_length() - 1
            return [(rank, quanta)] if scope and pool.free[rank] >= quanta else None
        if pool.order and pool.order[-1] == 1:
            # No device has more than one: every strategy takes one of each of so many devices.
            mask = pool.levels[1] & scope
            return [(rank, 1) for rank in self._select(pool, mask, quanta)] if mask.bit_count() >= quanta else None
        if self._strategy is AllocationStrategy.EVENLY:
            return self._evenly(pool, quanta, scope)
        return self._fill(pool, quanta, scope, tight=self._strategy is AllocationStrategy.LEAST_FRAGMENTATION)

    def _interleave(self, pool: SlotPool, quanta: int, nodes: Sequence[int], largest: int) -> Parts | None:
        parts: list[tuple[int, int]] = []
        for scope, share in zip(nodes, level_out([pool.room(scope) for scope in nodes], quanta), strict=True):
            parts += (share and self._pick(pool, share, scope, largest)) or ()
        return parts

    def _evenly(self, pool: SlotPool, quanta: int, scope: int) -> Parts | None:
        """Water-fills: devices with less free than the common level give all of it."""
        parts: list[tuple[int, int]] = []
        here = [(level, mask) for level in pool.order if (mask := pool.levels[level] & scope)]
        count = sum([mask.bit_count() for _, mask in here])
        for i, (level, mask) in enumerate(here):
            if level * count > quanta:
                share, extra = divmod(quanta, count)
                return parts + self._top(pool, here[i:], share, extra)
            parts += [(rank, level) for rank in ranks(mask)]
            quanta -= level * mask.bit_count()
            count -= mask.bit_count()
        return None if quanta else parts

    def _top(self, pool: SlotPool, here: Sequence[tuple[int, int]], share: int, extra: int) -> list[tuple[int, int]]:
        """Takes ``share`` of every device, and one more of the ``extra`` devices that have the most."""
        larger: list[int] = []
        for _, mask in reversed(here):
            if len(larger) == extra:
                break
            larger += self._select(pool, mask, min(extra - len(larger), mask.bit_count()), larger)
        parts = [(rank, share + 1) for rank in larger]
        if share:
            rest = set(larger)
            parts += [(rank, share) for _, mask in here for rank in ranks(mask) if rank not in rest]
        return parts

    def _fill(self, pool: SlotPool, quanta: int, scope: int, *, tight: bool) -> Parts | None:
        chosen: list[int] = []
        parts: list[tuple[int, int]] = []
        for level in reversed(pool.order):
            if not (mask := pool.levels[level] & scope):
                continue
            whole = min(mask.bit_count(), -(-quanta // level) - tight)
            if whole:
                selected = self._select(pool, mask, whole, chosen)
                chosen += selected
                parts += [(rank, level) for rank in selected]
                quanta -= whole * level
            if quanta <= 0:
                # The last device gives only what is left.
                parts[-1] = (chosen[-1], level + quanta)
                return parts
            if tight and whole < mask.bit_count():
                for rank in chosen:
                    scope &= ~(1 << rank)
                last = self._select(pool, pool.fullest(scope, quanta), 1, chosen)
                return [*parts, (last[0], quanta)]
        return None


class FractionalAllocMap(LedgerAllocMap):
    """Never splits a request that one device could hold; divides a larger one into shares that differ by at most a
    quantum.

    "Could hold" means the largest healthy eligible device, free or not: a program that asked for a part of a device
    does not expect two. A larger request takes as few devices as possible. EVENLY takes the devices with the most free,
    the other strategies the fullest ones that have room, unless others with room are linked better. INTERLEAVED: the
    devices of a larger request come in turn from every node. O(distinct free amounts + devices that give).
    """

    def _pick(self, pool: SlotPool, quanta: int, scope: int, largest: int) -> Parts | None:
        if quanta <= largest or pool.slot_type is SlotType.UNIQUE:
            return self._single(pool, quanta, scope)
        divided = _divide(pool, quanta, scope, largest)
        if divided is None:
            return None
        count, share, extra = divided
        larger = self._several(pool, scope, share + 1, extra, [])
        for rank in larger:
            scope &= ~(1 << rank)
        rest = self._several(pool, scope, share, count - extra, larger)
        return [(rank, share + 1) for rank in larger] + [(rank, share) for rank in rest]

    def _interleave(self, pool: SlotPool, quanta: int, nodes: Sequence[int], largest: int) -> Parts | None:
        if quanta <= largest or pool.slot_type is SlotType.UNIQUE:
            return next((p for scope in nodes if (p := self._single(pool, quanta, scope)) is not None), None)
        divided = _divide(pool, quanta, sum(nodes), largest)
        if divided is None:
            return None
        count, share, extra = divided
        parts: list[tuple[int, int]] = []
        for size, requested in ((share + 1, extra), (share, count - extra)):
            taken = {rank for rank, _ in parts}
            per_node = (
                [r for mask in self._levels(pool, scope, size) for r in ranks(mask) if r not in taken]
                for scope in nodes
            )
            in_turn = (r for r in chain.from_iterable(zip_longest(*per_node)) if r is not None)
            parts += [(rank, size) for rank, _ in zip(in_turn, range(requested), strict=False)]
        return parts

    def _single(self, pool: SlotPool, quanta: int, scope: int) -> Parts | None:
        if self._strategy is AllocationStrategy.EVENLY:
            most = pool.most(scope)
            candidates = pool.levels[most] & scope if most >= quanta else 0
        else:
            candidates = pool.fullest(scope, quanta)
        return [(self._select(pool, candidates, 1)[0], quanta)] if candidates else None

    def _several(self, pool: SlotPool, scope: int, share: int, count: int, taken: Sequence[int]) -> Sequence[int]:
        preferred: list[int] = []
        for mask in self._levels(pool, scope, share):
            if len(preferred) == count:
                break
            requested = min(count - len(preferred), mask.bit_count())
            preferred += self._select(pool, mask, requested, [*taken, *preferred])
        if self._links is None or count + len(taken) < 2:
            return preferred
        linked = self._select(pool, pool.with_room(scope, share), count, taken)
        cost, least = (self._links.cost_of((*taken, *chosen), 0)[0] for chosen in (preferred, linked))
        return preferred if cost <= least else linked

    def _levels(self, pool: SlotPool, scope: int, share: int) -> Iterator[int]:
        """Yields masks of devices that have room for a share, each of equally free ones, in the strategy's order."""
        levels = pool.order[bisect_left(pool.order, share) :]
        if self._strategy is AllocationStrategy.EVENLY:
            levels.reverse()
        return (pool.levels[level] & scope for level in levels)


def _divide(pool: SlotPool, quanta: int, scope: int, largest: int) -> tuple[int, int, int] | None:
    """Returns (devices, share, devices with one quantum more) with the fewest devices; None if impossible."""
    if not largest:
        return None
    # For each free amount, how many devices have at least so much free.
    at_least: list[tuple[int, int]] = []
    total = 0
    for level in reversed(pool.order):
        if mask := pool.levels[level] & scope:
            total += mask.bit_count()
            at_least.append((level, total))
    for count in range(-(-quanta // largest), total + 1):
        share, extra = divmod(quanta, count)
        if not share:
            return None
        if _count(at_least, share) >= count and _count(at_least, share + 1) >= extra:
            return count, share, extra
    return None


def _count(at_least: Sequence[tuple[int, int]], quanta: int) -> int:
    return max([total for level, total in at_least if level >= quanta], default=0)


class OpaqueAllocMap(LedgerAllocMap):
    """Counts each slot's sum over healthy devices as one device, :data:`ANY_DEVICE`.

    A request that is restricted to some devices is compared with their sizes only, as their use is not known.
    """

    def __init__(self, devices: Sequence[ComputeDevice]) -> None:
        """Raises InvalidAllocation as :class:`LedgerAllocMap` does."""
        super().__init__(devices)
        self._sizes = {
            name: {d: n for d, n, healthy in zip(self._ids, pool.amounts, self._healthy, strict=True) if healthy}
            for name, pool in self._pools.items()
        }
        slots = tuple(
            DeviceSlot(slot_name=b.name, slot_type=b.slot_type, amount=b.quantity(b.total), quantum=b.quantum)
            for b in self._pools.values()
        )
        aggregate = ComputeDevice(device_name=DeviceName("pool"), device_id=ANY_DEVICE, hw_location="", slots=slots)
        super().__init__([aggregate])

    def _choose(self, pool: SlotPool, quanta: int, hint: AffinityHint, eligible: Eligible) -> Parts:
        sizes = self._sizes[pool.name]
        most = pool.total_free if eligible is None else sum(n for d, n in sizes.items() if d in eligible)
        if quanta > min(pool.total_free, most):
            requested, available = (format_quantity(pool.quantity(n)) for n in (quanta, min(pool.total_free, most)))
            raise InsufficientResource(
                f"needs {requested} {pool.name}; at most {available} free",
                data={"slot": pool.name, "requested": requested, "available": available},
            )
        return self._pick(pool, quanta, self._all, pool.largest)

    def _pick(self, pool: SlotPool, quanta: int, scope: int, largest: int) -> Parts:
        return [(0, quanta)]

    def _interleave(self, pool: SlotPool, quanta: int, nodes: Sequence[int], largest: int) -> Parts:
        return [(0, quanta)]


STOCK = {"discrete": DiscreteAllocMap, "fractional": FractionalAllocMap}


def build_alloc_map(spec: AllocMapSpec, devices: Sequence[ComputeDevice]) -> LedgerAllocMap:
    """Returns an empty stock map over these devices.

    Raises:
        InvalidInput: there is no stock map of this kind.
        InvalidAllocation: the devices contradict each other.
    """
    kind = STOCK.get(spec.kind)
    if kind is None:
        raise InvalidInput(f"unknown kind of alloc map {spec.kind!r}; known are {', '.join(STOCK)}")
    return kind(devices, strategy=spec.strategy, affinity_policy=spec.affinity_policy)
