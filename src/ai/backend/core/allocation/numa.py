"""In which order NUMA nodes are tried."""

from __future__ import annotations

from ai.backend.common.devices import AllocationStrategy
from ai.backend.core.allocation.alloc_map import AffinityHint
from ai.backend.core.allocation.ledger import Cell

Candidates = list[tuple[Cell, int]]


def by_node(candidates: Candidates, hint: AffinityHint, strategy: AllocationStrategy) -> list[Candidates]:
    """Group candidates by NUMA node, best node first.

    Nodes of the hint come first, then devices of no known node, then the rest. Among equals, EVENLY prefers the node
    with the most free, the other strategies the one with the least, so that whole nodes stay free.
    """
    groups: dict[int | None, Candidates] = {}
    for cell, free in candidates:
        groups.setdefault(cell.numa_node, []).append((cell, free))
    sign = -1 if strategy is AllocationStrategy.EVENLY else 1

    def key(item: tuple[int | None, Candidates]) -> tuple[int, int, int]:
        node, members = item
        closeness = 0 if node in hint.numa_nodes else 1 if node is None else 2
        return closeness, sign * sum(free for _, free in members), -1 if node is None else node

    return [members for _, members in sorted(groups.items(), key=key)]
