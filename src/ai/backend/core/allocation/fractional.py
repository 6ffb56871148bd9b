"""Shares of devices, exact in the slot's quantum."""

from __future__ import annotations

from ai.backend.common.devices import AllocationStrategy
from ai.backend.common.states import SlotType
from ai.backend.core.allocation.alloc_map import AffinityHint
from ai.backend.core.allocation.ledger import LedgerAllocMap, Parts, SlotBook
from ai.backend.core.allocation.numa import Candidates, by_node


class FractionalAllocMap(LedgerAllocMap):
    """A request that one device could hold is never split; a larger one takes shares that differ by at most a quantum.

    "Could hold" means the largest healthy device of the slot, whether or not it is free now: a program that asked for a
    part of a device does not expect two. A larger request takes as few devices as possible, on one NUMA node if one can
    serve it. EVENLY takes the devices with the most free, the other strategies the fullest ones that have room.
    """

    def _choose(self, book: SlotBook, quanta: int, hint: AffinityHint) -> Parts:
        candidates = self._candidates(book)
        largest = max((c.amount for c in book.cells.values() if c.healthy), default=0)
        if not candidates:
            raise self._insufficient(book, quanta)
        groups = by_node(candidates, hint, self._strategy)
        if quanta <= largest or book.slot_type is SlotType.UNIQUE:
            return self._single(book, quanta, candidates, groups)
        if self._prefer_single_numa_node:
            for members in groups:
                parts = self._spread(members, quanta, largest)
                if parts is not None:
                    return parts
        parts = self._spread(candidates, quanta, largest)
        if parts is None:
            raise self._insufficient(book, quanta, largest=max((free for _, free in candidates), default=0))
        return parts

    def _single(self, book: SlotBook, quanta: int, candidates: Candidates, groups: list[Candidates]) -> Parts:
        for members in groups if self._prefer_single_numa_node else (candidates,):
            fitting = [(cell, free) for cell, free in members if free >= quanta]
            if fitting:
                cell, _ = self._ordered(fitting)[0]
                return [(cell, quanta)]
        raise self._insufficient(book, quanta, largest=max((free for _, free in candidates), default=0))

    def _ordered(self, candidates: Candidates) -> Candidates:
        sign = -1 if self._strategy is AllocationStrategy.EVENLY else 1
        return sorted(candidates, key=lambda c: (sign * c[1], c[0].rank))

    def _spread(self, candidates: Candidates, quanta: int, largest: int) -> Parts | None:
        """Equal shares over the fewest devices that can hold them; None if no number of devices can."""
        descending = sorted(candidates, key=lambda c: (-c[1], c[0].rank))
        for count in range(-(-quanta // largest), len(descending) + 1):
            share, extra = divmod(quanta, count)
            if not share:
                return None
            # ``extra`` devices hold one quantum more.
            if descending[count - 1][1] >= share and (not extra or descending[extra - 1][1] > share):
                return self._shares(candidates, count, share, extra)
        return None

    def _shares(self, candidates: Candidates, count: int, share: int, extra: int) -> Parts:
        larger = self._ordered([(c, free) for c, free in candidates if free > share])[:extra]
        taken = {cell.rank for cell, _ in larger}
        rest = self._ordered([(c, free) for c, free in candidates if free >= share and c.rank not in taken])
        return [(cell, share + 1) for cell, _ in larger] + [(cell, share) for cell, _ in rest[: count - extra]]
