"""Whole units: cores, bytes, whole accelerators. A quantity may come from any number of devices."""

from __future__ import annotations

from ai.backend.common.devices import AllocationStrategy
from ai.backend.core.allocation.alloc_map import AffinityHint
from ai.backend.core.allocation.ledger import LedgerAllocMap, Parts, SlotBook
from ai.backend.core.allocation.numa import Candidates, by_node


class DiscreteAllocMap(LedgerAllocMap):
    """Serves a request from one NUMA node if one has enough, else from as few nodes as possible; on them:

    * FILL: the devices with the most free first, so that it comes from as few devices as possible;
    * EVENLY: equal parts of every device (those with the most free give the remainder);
    * LEAST_FRAGMENTATION: the fullest device that still has room for all of it; else as FILL, but the last part comes
      from the fullest device that has room for it.
    """

    def _choose(self, book: SlotBook, quanta: int, hint: AffinityHint) -> Parts:
        candidates = self._candidates(book)
        if sum(free for _, free in candidates) < quanta:
            raise self._insufficient(book, quanta)
        if self._prefer_single_numa_node:
            candidates = self._narrow(candidates, quanta, hint)
        if self._strategy is AllocationStrategy.EVENLY:
            return _evenly(candidates, quanta)
        return _fill(candidates, quanta, tight=self._strategy is AllocationStrategy.LEAST_FRAGMENTATION)

    def _narrow(self, candidates: Candidates, quanta: int, hint: AffinityHint) -> Candidates:
        """The candidates of one NUMA node if one suffices, else of the fewest nodes that do."""
        groups = by_node(candidates, hint, self._strategy)
        room = [(sum(free for _, free in members), members) for members in groups]
        for free, members in room:
            if free >= quanta:
                return members
        chosen: Candidates = []
        for free, members in sorted(room, key=lambda r: -r[0]):
            chosen += members
            quanta -= free
            if quanta <= 0:
                break
        return chosen


def _evenly(candidates: Candidates, quanta: int) -> Parts:
    """Water-fill: find the level at which ``sum(min(free, level))`` just covers the request. O(n log n)."""
    ascending = sorted(candidates, key=lambda c: (c[1], -c[0].rank))
    parts: list[tuple[int, int]] = []
    left = quanta
    for i, (_, free) in enumerate(ascending):
        part = min(free, left // (len(ascending) - i))
        parts.append((i, part))
        left -= part
    # Fewer than one unit per device is left; those with the most free come last in ``ascending``, so they round up.
    return [(ascending[i][0], part) for i, part in reversed(parts) if part]


def _fill(candidates: Candidates, quanta: int, *, tight: bool) -> Parts:
    chosen: list[tuple[int, int]] = []
    descending = sorted(candidates, key=lambda c: (-c[1], c[0].rank))
    left = quanta
    for i, (_, free) in enumerate(descending):
        if tight and free >= left:
            # The rest fits one device: the fullest such one. Those after it in the order have less free.
            i = max(j for j, (_, room) in enumerate(descending[i:], i) if room >= left)
            free = descending[i][1]
        part = min(free, left)
        chosen.append((i, part))
        left -= part
        if not left:
            break
    return [(descending[i][0], part) for i, part in chosen]
