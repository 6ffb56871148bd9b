"""Indexes the free amount of one slot on every agent, so that a request touches only the agents it considers.

A set of agents is an ``int`` with a bit for each, as devices are in :mod:`ai.backend.core.allocation.slot_pool`; see
docs/decisions/0026-agent-sets-as-bit-masks.md. Quantities are integers, in millionths of the slot's unit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from decimal import Decimal

from ai.backend.core.allocation.slot_pool import MICRO

_LEVEL_COUNT = 1024
"""The number of levels of the largest agent by which agents are ordered."""
_MAX_EXACT_AMOUNTS = 1024
"""The number of requested amounts with exact masks; the masks of further amounts contain some agents too many."""
_INFINITE_MICRO = 10**40


def to_micro(quantity: Decimal) -> int:
    """Returns a quantity in millionths, rounded up."""
    if not quantity.is_finite():
        return _INFINITE_MICRO
    exact_micro = quantity * MICRO
    whole_micro = int(exact_micro)
    return whole_micro + (whole_micro != exact_micro)


def mask_of(ranks: Iterable[int], bit_count: int) -> int:
    """Returns the mask of some ranks in O(size / 8 + number of ranks)."""
    mask_bytes = bytearray(bit_count // 8 + 1)
    for rank in ranks:
        mask_bytes[rank >> 3] |= 1 << (rank & 7)
    return int.from_bytes(mask_bytes, "little")


def ranks_in_mask(mask: int) -> list[int]:
    """Returns the ranks of a mask, lowest first."""
    return [rank for rank, bit in enumerate(bin(mask)[:1:-1]) if bit == "1"]


class SlotIndex:
    """Indexes one slot of every agent.

    ``free`` is what each has now. Masks are refreshed when they are read: a decision that only compares numbers does
    not pay for them. Invariants, after :meth:`refresh`: ``_levels`` maps each ``free // unit`` to the mask of its
    agents, and ``_order`` are its keys, ascending; ``_masks`` maps each registered amount to the agents that have at
    least so much free.
    """

    __slots__ = ("_amounts", "_indexed", "_levels", "_masks", "_order", "_richest", "_stale", "free", "unit")

    def __init__(self, free_amounts: Sequence[int], most_micro: int, grain_micro: int = 1) -> None:
        """Indexes the amounts in ``free_amounts``.

        ``most_micro``: the largest total; ``grain_micro``: the divisor of every amount.
        """
        self.free = list(free_amounts)
        self.unit = max(grain_micro, most_micro // _LEVEL_COUNT)
        self._indexed = list(free_amounts)
        self._stale: list[int] = []
        self._amounts: list[int] = []
        self._masks: dict[int, int] = {}
        self._richest: dict[int, int] = {}
        ranks_by_level: dict[int, list[int]] = {}
        for rank, amount in enumerate(free_amounts):
            ranks_by_level.setdefault(amount // self.unit, []).append(rank)
        self._levels = {level: mask_of(ranks, len(free_amounts)) for level, ranks in ranks_by_level.items()}
        self._order = sorted(self._levels)

    def change(self, rank: int, free_micro: int) -> None:
        """Sets the free amount of an agent."""
        self.free[rank] = free_micro
        self._stale.append(rank)
        self._richest.clear()
        if len(self._stale) > len(self.free):
            self.refresh()

    def refresh(self) -> None:
        """Updates the masks for all agents whose free amounts have changed.

        O(registered amounts between the old and the new amount) for each changed agent.
        """
        for rank in set(self._stale):
            old_micro, new_micro = self._indexed[rank], self.free[rank]
            if old_micro == new_micro:
                continue
            self._indexed[rank] = new_micro
            agent_bit = 1 << rank
            old_level, new_level = old_micro // self.unit, new_micro // self.unit
            if old_level != new_level:
                self._change_level(agent_bit, old_level, new_level)
            lower_amount, higher_amount = (old_micro, new_micro) if old_micro < new_micro else (new_micro, old_micro)
            amounts, masks = self._amounts, self._masks
            for amount in amounts[bisect_right(amounts, lower_amount) : bisect_right(amounts, higher_amount)]:
                masks[amount] ^= agent_bit
        self._stale.clear()

    def _change_level(self, agent_bit: int, old_level: int, new_level: int) -> None:
        levels = self._levels
        if remaining_mask := levels[old_level] ^ agent_bit:
            levels[old_level] = remaining_mask
        else:
            del levels[old_level]
            del self._order[bisect_left(self._order, old_level)]
        if new_level not in levels:
            insort(self._order, new_level)
        levels[new_level] = levels.get(new_level, 0) | agent_bit

    def register_amount(self, amount: int) -> int:
        """Adds a mask for requests of this amount. Returns the amount, rounded down, for :meth:`mask_with_free`."""
        if amount not in self._masks:
            if len(self._masks) >= _MAX_EXACT_AMOUNTS:
                amount = max(1, amount // self.unit * self.unit)
            if amount not in self._masks:
                self.refresh()
                self._masks[amount] = self._compute_mask(amount)
                insort(self._amounts, amount)
        return amount

    def mask_with_free(self, amount: int) -> int:
        """Returns the agents that have this amount free.

        If the amount has no mask, the next smaller amount with a mask is used.
        """
        if self._stale:
            self.refresh()
        mask = self._masks.get(amount)
        return self._masks[self.register_amount(amount)] if mask is None else mask

    def _compute_mask(self, amount: int) -> int:
        edge_level = amount // self.unit
        ranks_with_enough = [
            rank for rank in ranks_in_mask(self._levels.get(edge_level, 0)) if self.free[rank] >= amount
        ]
        mask = mask_of(ranks_with_enough, len(self.free))
        for level in self._order[bisect_right(self._order, edge_level) :]:
            mask |= self._levels[level]
        return mask

    def emptiest_mask(self, agent_mask: int) -> int:
        """Returns the agents of a mask with the most free."""
        if self._stale:
            self.refresh()
        levels = self._levels
        for level in reversed(self._order):
            if level_mask := levels[level] & agent_mask:
                return level_mask
        return 0

    def richest_rank(self, agent_mask: int) -> int:
        """Returns the agent of a non-empty mask that has exactly the most free.

        Among equal agents, the last one is returned.
        """
        best_rank = self._richest.get(agent_mask)
        if best_rank is None:
            best_rank = max(ranks_in_mask(self.emptiest_mask(agent_mask)), key=lambda rank: (self.free[rank], rank))
            self._richest[agent_mask] = best_rank
        return best_rank
