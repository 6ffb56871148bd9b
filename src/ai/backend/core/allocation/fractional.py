"""Allocates shares of devices, exact in the slot's quantum."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest

from ai.backend.common.devices import AllocationStrategy
from ai.backend.common.states import SlotType
from ai.backend.core.allocation.ledger import LedgerAllocMap
from ai.backend.core.allocation.slot_pool import Parts, SlotPool, ranks


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
    # How many devices have at least so much free, for each amount that one has.
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
