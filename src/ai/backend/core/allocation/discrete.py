"""Allocates whole units: cores, bytes, whole accelerators. A quantity may come from any number of devices."""

from __future__ import annotations

from collections.abc import Sequence

from ai.backend.common.devices import AllocationStrategy
from ai.backend.core.allocation.ledger import LedgerAllocMap
from ai.backend.core.allocation.numa import level_out
from ai.backend.core.allocation.slot_pool import Parts, SlotPool, ranks


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
        found: list[tuple[int, int]] = []
        for scope, share in zip(nodes, level_out([pool.room(scope) for scope in nodes], quanta), strict=True):
            found += (share and self._pick(pool, share, scope, largest)) or ()
        return found

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
