"""Indexes the free amount of one slot on every agent, so that a request touches only the agents it considers.

A set of agents is an ``int`` with a bit for each, as devices are in :mod:`ai.backend.core.allocation.slot_pool`; see
docs/decisions/0026-agent-sets-as-bit-masks.md. Quantities are integers, in millionths of the slot's unit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from decimal import Decimal

from ai.backend.core.allocation.slot_pool import MICRO

_LEVELS = 1024
"""The number of levels of the largest agent by which agents are ordered."""
_EXACT_AMOUNTS = 1024
"""The number of requested amounts with exact masks; the masks of further amounts contain some agents too many."""
_BOUNDLESS = 10**40


def micro(quantity: Decimal) -> int:
    """Returns a quantity in millionths, rounded up."""
    if not quantity.is_finite():
        return _BOUNDLESS
    scaled = quantity * MICRO
    whole = int(scaled)
    return whole + (whole != scaled)


def mask_of(ranks: Iterable[int], size: int) -> int:
    """Returns the mask of some ranks in O(size / 8 + number of ranks)."""
    bits = bytearray(size // 8 + 1)
    for rank in ranks:
        bits[rank >> 3] |= 1 << (rank & 7)
    return int.from_bytes(bits, "little")


def members(mask: int) -> list[int]:
    """Returns the ranks of a mask, lowest first."""
    return [rank for rank, bit in enumerate(bin(mask)[:1:-1]) if bit == "1"]


class SlotIndex:
    """Indexes one slot of every agent.

    ``free`` is what each has now. Masks are brought up to date when they are asked for: a decision that only compares
    numbers does not pay for them. Invariants, after :meth:`settle`: ``_levels`` maps each ``free // unit`` to the mask
    of the agents that are there, and ``_order`` are its keys, ascending; ``_masks`` maps each registered amount to the
    agents that have at least so much free.
    """

    __slots__ = ("_amounts", "_indexed", "_levels", "_masks", "_order", "_richest", "_stale", "free", "unit")

    def __init__(self, free: Sequence[int], most: int, grain: int = 1) -> None:
        """``most``: the total of the largest agent; ``grain``: every amount is a multiple of it."""
        self.free = list(free)
        self.unit = max(grain, most // _LEVELS)
        self._indexed = list(free)
        self._stale: list[int] = []
        self._amounts: list[int] = []
        self._masks: dict[int, int] = {}
        self._richest: dict[int, int] = {}
        by_level: dict[int, list[int]] = {}
        for rank, amount in enumerate(free):
            by_level.setdefault(amount // self.unit, []).append(rank)
        self._levels = {level: mask_of(ranks, len(free)) for level, ranks in by_level.items()}
        self._order = sorted(self._levels)

    def change(self, rank: int, now: int) -> None:
        """Sets the free amount of an agent."""
        self.free[rank] = now
        self._stale.append(rank)
        self._richest.clear()
        if len(self._stale) > len(self.free):
            self.refresh()

    def refresh(self) -> None:
        """Updates the masks. O(registered amounts between the old and the new amount) for each changed agent."""
        for rank in set(self._stale):
            before, now = self._indexed[rank], self.free[rank]
            if before == now:
                continue
            self._indexed[rank] = now
            bit = 1 << rank
            source, target = before // self.unit, now // self.unit
            if source != target:
                self._move(bit, source, target)
            low, high = (before, now) if before < now else (now, before)
            amounts, masks = self._amounts, self._masks
            for amount in amounts[bisect_right(amounts, low) : bisect_right(amounts, high)]:
                masks[amount] ^= bit
        self._stale.clear()

    def _move(self, bit: int, source: int, target: int) -> None:
        levels = self._levels
        if rest := levels[source] ^ bit:
            levels[source] = rest
        else:
            del levels[source]
            del self._order[bisect_left(self._order, source)]
        others = levels.get(target)
        if others is None:
            levels[target] = bit
            insort(self._order, target)
        else:
            levels[target] = others | bit

    def register(self, amount: int) -> int:
        """Adds a mask for requests of this amount. Returns the amount, rounded down, to pass to :meth:`at_least`."""
        if amount not in self._masks:
            if len(self._masks) >= _EXACT_AMOUNTS:
                amount = max(1, amount // self.unit * self.unit)
            if amount not in self._masks:
                self.refresh()
                self._masks[amount] = self._at_least(amount)
                insort(self._amounts, amount)
        return amount

    def at_least(self, amount: int) -> int:
        """Returns the agents that have this amount free, or the closest smaller amount that has a mask."""
        if self._stale:
            self.refresh()
        mask = self._masks.get(amount)
        return self._masks[self.register(amount)] if mask is None else mask

    def _at_least(self, amount: int) -> int:
        edge, result = amount // self.unit, 0
        for level in self._order[bisect_right(self._order, edge) :]:
            result |= self._levels[level]
        candidates = members(self._levels.get(edge, 0))
        return result | mask_of((rank for rank in candidates if self.free[rank] >= amount), len(self.free))

    def emptiest(self, scope: int) -> int:
        """Returns the agents of a mask with the most free."""
        if self._stale:
            self.refresh()
        levels = self._levels
        for level in reversed(self._order):
            if agents := levels[level] & scope:
                return agents
        return 0

    def richest(self, scope: int) -> int:
        """Returns the agent of a non-empty mask that has exactly the most free; the last of equals."""
        best = self._richest.get(scope)
        if best is None:
            best = max(members(self.emptiest(scope)), key=lambda rank: (self.free[rank], rank))
            self._richest[scope] = best
        return best
