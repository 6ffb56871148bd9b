"""How much of one slot every agent has free, indexed so that a request touches only the agents it considers.

A set of agents is an ``int`` with a bit for each, as devices are in :mod:`ai.backend.core.allocation.book`; see
docs/decisions/0026-agents-as-masks.md. Quantities are integers, in millionths of the slot's unit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

from ai.backend.core.allocation.book import MICRO

_LEVELS = 1024
"""So many steps of the largest agent are told apart when agents are put in order."""
_EXACT_AMOUNTS = 1024
"""So many requested amounts have exact masks; the masks of further ones hold some agents too many."""
_FEW = 8
_BOUNDLESS = 10**40


def micro(quantity: Decimal) -> int:
    """A requested quantity in millionths, rounded up."""
    if not quantity.is_finite():
        return _BOUNDLESS
    scaled = quantity * MICRO
    whole = int(scaled)
    return whole + (whole != scaled)


def mask_of(ranks: Iterable[int], size: int) -> int:
    """O(size / 8 + number of ranks), which shifting and adding them one by one is not."""
    bits = bytearray(size // 8 + 1)
    for rank in ranks:
        bits[rank >> 3] |= 1 << (rank & 7)
    return int.from_bytes(bits, "little")


def members(mask: int) -> list[int]:
    """The ranks of a mask, lowest first."""
    return [rank for rank, bit in enumerate(bin(mask)[:1:-1]) if bit == "1"]


class SlotIndex:
    """One slot of every agent.

    Invariants: ``levels`` maps each ``free // unit`` to the mask of the agents that are there, and ``order`` are its
    keys, ascending; ``masks`` maps each registered amount to the agents that have at least so much free.
    """

    __slots__ = ("_amounts", "free", "levels", "masks", "order", "unit")

    def __init__(self, free: Sequence[int], most: int) -> None:
        """``most``: what the largest agent has of it, taken or not."""
        self.free = list(free)
        self.unit = max(1, most // _LEVELS)
        self._amounts: list[int] = []
        self.masks: dict[int, int] = {}
        by_level: dict[int, list[int]] = {}
        for rank, amount in enumerate(free):
            by_level.setdefault(amount // self.unit, []).append(rank)
        self.levels = {level: mask_of(ranks, len(free)) for level, ranks in by_level.items()}
        self.order = sorted(self.levels)

    def change(self, rank: int, now: int) -> None:
        """An agent has so much free now. O(registered amounts between before and now)."""
        before = self.free[rank]
        if before == now:
            return
        self.free[rank] = now
        bit = 1 << rank
        source, target = before // self.unit, now // self.unit
        if source != target:
            self._move(bit, source, target)
        low, high = (before, now) if before < now else (now, before)
        amounts, masks = self._amounts, self.masks
        for amount in amounts[bisect_right(amounts, low) : bisect_right(amounts, high)]:
            masks[amount] ^= bit

    def _move(self, bit: int, source: int, target: int) -> None:
        levels = self.levels
        if rest := levels[source] ^ bit:
            levels[source] = rest
        else:
            del levels[source]
            del self.order[bisect_left(self.order, source)]
        others = levels.get(target)
        if others is None:
            levels[target] = bit
            insort(self.order, target)
        else:
            levels[target] = others | bit

    def register(self, amount: int) -> int:
        """Keep a mask for requests of this amount; returns its key in ``masks``, at most the amount."""
        if amount not in self.masks:
            if len(self.masks) >= _EXACT_AMOUNTS:
                amount = max(1, amount // self.unit * self.unit)
            if amount not in self.masks:
                self.masks[amount] = self._at_least(amount)
                insort(self._amounts, amount)
        return amount

    def _at_least(self, amount: int) -> int:
        edge, found = amount // self.unit, 0
        for level in self.order[bisect_right(self.order, edge) :]:
            found |= self.levels[level]
        here = members(self.levels.get(edge, 0))
        return found | mask_of((rank for rank in here if self.free[rank] >= amount), len(self.free))

    def ascending(self, scope: int, amount: int = 0) -> Iterator[int]:
        """Of a mask: the agents with the least free that is at least ``amount``, then those with more, ..."""
        for level in self.order[bisect_left(self.order, amount // self.unit) :]:
            if found := self.levels[level] & scope:
                yield found

    def _alike(self, scope: int, sign: int) -> int:
        """Of a mask of few: those on the level of the least (1) or the most (-1) free."""
        least, found = 0, 0
        while scope:
            bit = scope & -scope
            scope ^= bit
            level = sign * (self.free[bit.bit_length() - 1] // self.unit)
            if not found or level < least:
                least, found = level, bit
            elif level == least:
                found |= bit
        return found

    def fullest(self, scope: int, amount: int) -> int:
        """Of a mask of agents that have at least ``amount``: those with the least free."""
        if scope.bit_count() <= _FEW:
            return self._alike(scope, 1)
        return next(self.ascending(scope, amount), 0)

    def emptiest(self, scope: int) -> int:
        """Of a mask: those with the most free."""
        if scope.bit_count() <= _FEW:
            return self._alike(scope, -1)
        levels = self.levels
        for level in reversed(self.order):
            if found := levels[level] & scope:
                return found
        return 0

    def richest(self, scope: int) -> int:
        """Of a mask that is not empty: the one that has exactly the most free; among equals the last."""
        return max(members(self.emptiest(scope)), key=lambda rank: (self.free[rank], rank))
