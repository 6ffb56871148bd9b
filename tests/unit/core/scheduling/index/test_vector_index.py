"""The index by free vectors finds what comparing all agents finds."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from ai.backend.core.scheduling.index.slot_index import SlotIndex, mask_of, ranks_in_mask
from ai.backend.core.scheduling.index.vector_index import Edges, VectorIndex


@dataclass
class Read:
    floor: int
    edges: Edges
    is_small: bool


LARGEST = (8_000_000, 64_000_000, 503_600_000_000)


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_what_comparing_all_agents_finds(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.choice((3, 40, 300))

    def free() -> tuple[int, ...]:
        return rng.randrange(9) * 10**6, rng.randrange(65) * 10**6, rng.randrange(LARGEST[2] + 1)

    agents = [free() for _ in range(size)]
    grains = (1_000_000, 1_000_000, 1)
    indexes = [
        SlotIndex(column, most, grain)
        for column, most, grain in zip(zip(*agents, strict=True), LARGEST, grains, strict=True)
    ]
    here = [rank for rank in range(size) if rng.random() < 0.9]
    vectors = VectorIndex(indexes, mask_of(here, size), size)
    for _ in range(60):
        rank = rng.choice(here) if here else 0
        if here:
            agents[rank] = free()
            for index, amount in zip(indexes, agents[rank], strict=True):
                index.change(rank, amount)
            vectors.change(rank)
        wanted = free() if rng.random() < 0.7 else agents[rank]
        scope = mask_of((r for r in here if rng.random() < rng.choice((0.02, 0.5, 1.0))), size)
        fitting = [r for r in ranks_in_mask(scope) if all(a >= w for a, w in zip(agents[r], wanted, strict=True))]
        levels = {r: tuple(a // i.unit for a, i in zip(agents[r], indexes, strict=True)) for r in fitting}
        read = Read(*vectors.floor(wanted), is_small=rng.random() < 0.3)
        for found, best in (
            (vectors.fullest_mask(read, scope), min),
            (vectors.emptiest_mask(read, scope), max),
        ):
            chosen = best(levels.values()) if levels else None
            assert ranks_in_mask(found) == [r for r in fitting if levels[r] == chosen]
        for index, column, amount in zip(indexes, zip(*agents, strict=True), wanted, strict=True):
            assert ranks_in_mask(index.mask_with_free(amount)) == [r for r in range(size) if column[r] >= amount]
