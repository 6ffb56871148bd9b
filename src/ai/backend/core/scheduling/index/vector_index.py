"""Orders agents by what they have free of several slots at once: the fullest or emptiest one that fits is found by a
few comparisons, whatever the number of agents and requests; see docs/decisions/0121-free-resource-vectors.md.

What an agent has free is one integer, its *vector*: the level (see :mod:`slot_index`) of each slot in a field of its
own, the scarcest slot in the highest bits. So integers compare as vectors do, the scarcest slot first, and one
subtraction compares all fields.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ai.backend.core.scheduling.index.slot_index import SlotIndex, mask_of, members

_WIDTH = 13
"""Bits of a field: a level and, as the highest bit, a guard that a subtraction borrows where a level is too small."""
_FIELD = (1 << _WIDTH) - 1
_MOST = (1 << (_WIDTH - 1)) - 1


Edges = tuple[tuple[SlotIndex, int, int], ...]
"""(slot, amount, shift of its field) where the level of an agent does not tell whether it has the amount."""


class VectorRequest(Protocol):
    """A request as :meth:`VectorIndex.floor` reads it. ``is_small``: each of few candidates is inspected."""

    @property
    def floor(self) -> int: ...

    @property
    def edges(self) -> Edges: ...

    @property
    def is_small(self) -> bool: ...


class VectorIndex:
    """Indexes the agents of a mask by their vectors.

    Invariants: ``_masks`` maps each vector to the mask of the agents that have it, ``_order`` are its keys, ascending;
    ``_vectors`` is that of each agent. O(log agents) for each change.
    """

    __slots__ = ("_guards", "_indexes", "_masks", "_order", "_shifts", "_vectors")

    def __init__(self, indexes: Sequence[SlotIndex], scope: int, size: int) -> None:
        """``indexes``: of each slot, the scarcest first."""
        self._indexes = tuple(indexes)
        self._shifts = tuple(range(_WIDTH * (len(indexes) - 1), -1, -_WIDTH))
        self._guards = sum(1 << shift + _WIDTH - 1 for shift in self._shifts)
        self._vectors: dict[int, int] = {}
        by_vector: dict[int, list[int]] = {}
        for rank in members(scope):
            vector = self._vectors[rank] = self.vector(rank)
            by_vector.setdefault(vector, []).append(rank)
        self._masks = {vector: mask_of(ranks, size) for vector, ranks in by_vector.items()}
        self._order = sorted(self._masks)

    def vector(self, rank: int) -> int:
        """Returns the vector of an agent from what it has free now."""
        result = 0
        for index in self._indexes:
            result = result << _WIDTH | index.free[rank] // index.unit
        return result

    def floor(self, amounts: Sequence[int]) -> tuple[int, Edges]:
        """Returns the least vector with these amounts, and the slots whose levels are not precise enough."""
        vector, edges = 0, []
        for index, amount, shift in zip(self._indexes, amounts, self._shifts, strict=True):
            vector = vector << _WIDTH | min(amount // index.unit, _MOST)
            if amount % index.unit:
                edges.append((index, amount, shift))
        return vector, tuple(edges)

    def change(self, rank: int) -> None:
        """Updates the vector of an agent."""
        before, now = self._vectors[rank], self.vector(rank)
        if before == now:
            return
        self._vectors[rank] = now
        masks, bit = self._masks, 1 << rank
        if rest := masks[before] ^ bit:
            masks[before] = rest
        else:
            del masks[before]
            del self._order[bisect_left(self._order, before)]
        others = masks.get(now)
        if others is None:
            masks[now] = bit
            insort(self._order, now)
        else:
            masks[now] = others | bit

    def fullest(self, request: VectorRequest, scope: int) -> int:
        """Returns the agents of a mask that fit with the least of the scarcest slot, then of the next; 0 for none."""
        if request.is_small:
            return self._of_few(request.floor, request.edges, scope, min)
        order, masks, guards = self._order, self._masks, self._guards
        floor, edges = request.floor, request.edges
        at = bisect_left(order, floor)
        while at < len(order):
            vector = order[at]
            short = ~((vector | guards) - floor) & guards
            if not short:
                agents = masks[vector] & scope
                if agents and (not edges or (agents := self._exact(agents, vector, floor, edges))):
                    return agents
                at += 1
            else:
                # The next one that can fit has as much of the scarcer slots, and enough of this and the others.
                kept = short.bit_length()
                at = bisect_left(order, vector >> kept << kept | floor & (1 << kept) - 1, at + 1)
        return 0

    def emptiest(self, request: VectorRequest, scope: int) -> int:
        """Returns the agents like :meth:`fullest`, with the most instead of the least."""
        if request.is_small:
            return self._of_few(request.floor, request.edges, scope, max)
        order, masks, guards = self._order, self._masks, self._guards
        floor, edges = request.floor, request.edges
        at = len(order) - 1
        while at >= 0:
            vector = order[at]
            short = ~((vector | guards) - floor) & guards
            if not short:
                agents = masks[vector] & scope
                if agents and (not edges or (agents := self._exact(agents, vector, floor, edges))):
                    return agents
                at -= 1
            else:
                # The next one that can fit has less of the scarcer slots.
                kept = short.bit_length()
                at = bisect_left(order, vector >> kept << kept, 0, at) - 1
        return 0

    @staticmethod
    def _exact(found: int, vector: int, floor: int, edges: Edges) -> int:
        """Returns those of agents with equal vectors that have the exact amounts."""
        for index, amount, shift in edges:
            if vector >> shift & _FIELD == floor >> shift & _FIELD:
                enough = [rank for rank in members(found) if index.free[rank] >= amount]
                found = mask_of(enough, found.bit_length())
        return found

    def _of_few(self, floor: int, edges: Edges, scope: int, best: Callable[[Iterable[int]], int]) -> int:
        fitting: dict[int, int] = {}
        while scope:
            bit = scope & -scope
            scope ^= bit
            vector = self._vectors[bit.bit_length() - 1]
            if not ~((vector | self._guards) - floor) & self._guards and self._exact(bit, vector, floor, edges):
                fitting[vector] = fitting.get(vector, 0) | bit
        return fitting[best(fitting)] if fitting else 0
