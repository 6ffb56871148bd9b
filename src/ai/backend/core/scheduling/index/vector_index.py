"""Orders agents by their free amounts of several slots, to find the fullest or emptiest agent that fits quickly.

What an agent has free is one integer, its *vector*: the level (see :mod:`slot_index`) of each slot in a field of its
own, the scarcest slot in the highest bits. So integers compare as vectors do, the scarcest slot first, and one
subtraction compares all fields; see docs/decisions/0121-free-resource-vectors.md.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ai.backend.core.scheduling.index.slot_index import SlotIndex, mask_of, ranks_in_mask

_FIELD_BITS = 13
"""Bits of a field: a level and, as the highest bit, a guard that a subtraction borrows where a level is too small."""
_FIELD_MASK = (1 << _FIELD_BITS) - 1
_MAX_LEVEL = (1 << (_FIELD_BITS - 1)) - 1


Edges = tuple[tuple[SlotIndex, int, int], ...]
"""(slot, amount, shift of its field) where the level of an agent does not tell whether it has the amount."""


class VectorRequest(Protocol):
    """Describes a request by the values that :meth:`VectorIndex.floor` returns.

    ``is_small``: each of few candidates is inspected.
    """

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

    def __init__(self, slot_indexes: Sequence[SlotIndex], agent_mask: int, agent_count: int) -> None:
        """Indexes the agents by ``slot_indexes``, one for each slot, the scarcest first."""
        self._indexes = tuple(slot_indexes)
        self._shifts = tuple(range(_FIELD_BITS * (len(slot_indexes) - 1), -1, -_FIELD_BITS))
        self._guards = sum(1 << shift + _FIELD_BITS - 1 for shift in self._shifts)
        self._vectors: dict[int, int] = {}
        ranks_by_vector: dict[int, list[int]] = {}
        for rank in ranks_in_mask(agent_mask):
            vector = self._vectors[rank] = self.vector(rank)
            ranks_by_vector.setdefault(vector, []).append(rank)
        self._masks = {vector: mask_of(ranks, agent_count) for vector, ranks in ranks_by_vector.items()}
        self._order = sorted(self._masks)

    def vector(self, rank: int) -> int:
        """Returns the vector of an agent: its present free amounts of the indexed slots, rounded, in one integer."""
        vector = 0
        for slot_index in self._indexes:
            vector = vector << _FIELD_BITS | slot_index.free[rank] // slot_index.unit
        return vector

    def floor(self, amounts: Sequence[int]) -> tuple[int, Edges]:
        """Returns the least vector of agents that may fit, and the slots whose amounts must be checked exactly.

        The levels of these slots in a vector are not precise enough.
        """
        vector, edges = 0, []
        for slot_index, amount, shift in zip(self._indexes, amounts, self._shifts, strict=True):
            vector = vector << _FIELD_BITS | min(amount // slot_index.unit, _MAX_LEVEL)
            if amount % slot_index.unit:
                edges.append((slot_index, amount, shift))
        return vector, tuple(edges)

    def change(self, rank: int) -> None:
        """Updates the vector of an agent."""
        old_vector, new_vector = self._vectors[rank], self.vector(rank)
        if old_vector == new_vector:
            return
        self._vectors[rank] = new_vector
        masks, agent_bit = self._masks, 1 << rank
        if remaining_mask := masks[old_vector] ^ agent_bit:
            masks[old_vector] = remaining_mask
        else:
            del masks[old_vector]
            del self._order[bisect_left(self._order, old_vector)]
        if new_vector not in masks:
            insort(self._order, new_vector)
        masks[new_vector] = masks.get(new_vector, 0) | agent_bit

    def fullest_mask(self, request: VectorRequest, agent_mask: int) -> int:
        """Returns the fitting agents of a mask with the least of the scarcest slot, then of the next slot.

        0 means none fit.
        """
        if request.is_small:
            return self._best_of_few_mask(request.floor, request.edges, agent_mask, min)
        vectors, masks, guards = self._order, self._masks, self._guards
        floor, edges = request.floor, request.edges
        position = bisect_left(vectors, floor)
        while position < len(vectors):
            vector = vectors[position]
            lacking_bits = ~((vector | guards) - floor) & guards
            if not lacking_bits:
                fitting_mask = masks[vector] & agent_mask
                if fitting_mask and (
                    not edges or (fitting_mask := self._exact_mask(fitting_mask, vector, floor, edges))
                ):
                    return fitting_mask
                position += 1
            else:
                # The next one that can fit has as much of the scarcer slots, and enough of this and the others.
                kept_shift = lacking_bits.bit_length()
                position = bisect_left(
                    vectors, vector >> kept_shift << kept_shift | floor & (1 << kept_shift) - 1, position + 1
                )
        return 0

    def emptiest_mask(self, request: VectorRequest, agent_mask: int) -> int:
        """Returns the fitting agents like :meth:`fullest_mask`, but with the most free instead of the least."""
        if request.is_small:
            return self._best_of_few_mask(request.floor, request.edges, agent_mask, max)
        vectors, masks, guards = self._order, self._masks, self._guards
        floor, edges = request.floor, request.edges
        position = len(vectors) - 1
        while position >= 0:
            vector = vectors[position]
            lacking_bits = ~((vector | guards) - floor) & guards
            if not lacking_bits:
                fitting_mask = masks[vector] & agent_mask
                if fitting_mask and (
                    not edges or (fitting_mask := self._exact_mask(fitting_mask, vector, floor, edges))
                ):
                    return fitting_mask
                position -= 1
            else:
                # The next one that can fit has less of the scarcer slots.
                kept_shift = lacking_bits.bit_length()
                position = bisect_left(vectors, vector >> kept_shift << kept_shift, 0, position) - 1
        return 0

    @staticmethod
    def _exact_mask(equal_mask: int, vector: int, floor_vector: int, edges: Edges) -> int:
        """Returns those agents of a mask with equal vectors that really have the requested amounts free."""
        for slot_index, amount, shift in edges:
            if vector >> shift & _FIELD_MASK == floor_vector >> shift & _FIELD_MASK:
                ranks_with_enough = [rank for rank in ranks_in_mask(equal_mask) if slot_index.free[rank] >= amount]
                equal_mask = mask_of(ranks_with_enough, equal_mask.bit_length())
        return equal_mask

    def _best_of_few_mask(
        self, floor_vector: int, edges: Edges, agent_mask: int, best_vector_of: Callable[[Iterable[int]], int]
    ) -> int:
        mask_by_vector: dict[int, int] = {}
        while agent_mask:
            agent_bit = agent_mask & -agent_mask
            agent_mask ^= agent_bit
            vector = self._vectors[agent_bit.bit_length() - 1]
            if not ~((vector | self._guards) - floor_vector) & self._guards and self._exact_mask(
                agent_bit, vector, floor_vector, edges
            ):
                mask_by_vector[vector] = mask_by_vector.get(vector, 0) | agent_bit
        return mask_by_vector[best_vector_of(mask_by_vector)] if mask_by_vector else 0
