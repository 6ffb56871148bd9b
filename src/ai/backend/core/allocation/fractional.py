"""Shares of devices, exact in the slot's quantum."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest

from ai.backend.common.devices import AllocationStrategy
from ai.backend.common.states import SlotType
from ai.backend.core.allocation.ledger import LedgerAllocMap
from ai.backend.core.allocation.slot_pool import Parts, SlotPool, ranks


class FractionalAllocMap(LedgerAllocMap):
    """A request that one device could hold is never split; a larger one takes shares that differ by at most a quantum.

    "Could hold" means the largest healthy device that may be given, whether or not it is free now: a program that asked
    for a part of a device does not expect two. A larger request takes as few devices as possible. EVENLY takes the
    devices with the most free, the other strategies the fullest ones that have room; unless others that have room too
    are linked better. INTERLEAVED: the devices of a larger request come in turn from every
    node. O(distinct free amounts + devices that give).
    """

    def _pick(self, book: SlotPool, quanta: int, scope: int, largest: int) -> Parts | None:
        if quanta <= largest or book.slot_type is SlotType.UNIQUE:
            return self._single(book, quanta, scope)
        divided = _divide(book, quanta, scope, largest)
        if divided is None:
            return None
        count, share, extra = divided
        larger = self._several(book, scope, share + 1, extra, [])
        for rank in larger:
            scope &= ~(1 << rank)
        rest = self._several(book, scope, share, count - extra, larger)
        return [(rank, share + 1) for rank in larger] + [(rank, share) for rank in rest]

    def _interleave(self, book: SlotPool, quanta: int, nodes: Sequence[int], largest: int) -> Parts | None:
        if quanta <= largest or book.slot_type is SlotType.UNIQUE:
            return next((p for scope in nodes if (p := self._single(book, quanta, scope)) is not None), None)
        divided = _divide(book, quanta, sum(nodes), largest)
        if divided is None:
            return None
        count, share, extra = divided
        parts: list[tuple[int, int]] = []
        for size, wanted in ((share + 1, extra), (share, count - extra)):
            taken = {rank for rank, _ in parts}
            per_node = (
                [r for mask in self._levels(book, scope, size) for r in ranks(mask) if r not in taken]
                for scope in nodes
            )
            in_turn = (r for r in chain.from_iterable(zip_longest(*per_node)) if r is not None)
            parts += [(rank, size) for rank, _ in zip(in_turn, range(wanted), strict=False)]
        return parts

    def _single(self, book: SlotPool, quanta: int, scope: int) -> Parts | None:
        if self._strategy is AllocationStrategy.EVENLY:
            most = book.most(scope)
            candidates = book.levels[most] & scope if most >= quanta else 0
        else:
            candidates = book.fullest(scope, quanta)
        return [(self._select(book, candidates, 1)[0], quanta)] if candidates else None

    def _several(self, book: SlotPool, scope: int, share: int, count: int, taken: Sequence[int]) -> Sequence[int]:
        preferred: list[int] = []
        for mask in self._levels(book, scope, share):
            if len(preferred) == count:
                break
            wanted = min(count - len(preferred), mask.bit_count())
            preferred += self._select(book, mask, wanted, [*taken, *preferred])
        if self._links is None or count + len(taken) < 2:
            return preferred
        linked = self._select(book, book.with_room(scope, share), count, taken)
        cost, least = (self._links.judge((*taken, *chosen), 0)[0] for chosen in (preferred, linked))
        return preferred if cost <= least else linked

    def _levels(self, book: SlotPool, scope: int, share: int) -> Iterator[int]:
        """The devices that have room for a share, those with equally much together, as the strategy prefers them."""
        levels = book.order[bisect_left(book.order, share) :]
        if self._strategy is AllocationStrategy.EVENLY:
            levels.reverse()
        return (book.levels[level] & scope for level in levels)


def _divide(book: SlotPool, quanta: int, scope: int, largest: int) -> tuple[int, int, int] | None:
    """(devices, share, how many of them hold one quantum more) with the fewest devices; None if no number will do."""
    if not largest:
        return None
    # How many devices have at least so much free, for each amount that one has.
    at_least: list[tuple[int, int]] = []
    total = 0
    for level in reversed(book.order):
        if mask := book.levels[level] & scope:
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
