"""Orders NUMA nodes, and interleaves a quantity over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ai.backend.common.devices import AllocationStrategy
from ai.backend.core.allocation.alloc_map import AffinityHint


def precedence(node: int | None, room: int, hint: AffinityHint, strategy: AllocationStrategy) -> tuple[int, int, int]:
    """Returns the sort key of a node, smaller first; its first part is the closeness to the hint.

    Nodes of the hint come first, then devices of no known node, then the rest. Among equals, EVENLY prefers the node
    with the most free, the other strategies the one with the least, so that whole nodes stay free.
    """
    closeness = 0 if node in hint.numa_nodes else 1 if node is None else 2
    return closeness, -room if strategy is AllocationStrategy.EVENLY else room, -1 if node is None else node


def in_order(
    rooms: Mapping[int | None, int], hint: AffinityHint, strategy: AllocationStrategy
) -> list[tuple[int, int | None]]:
    """Returns (closeness, node) of each node, best first."""
    keyed = {node: precedence(node, room, hint, strategy) for node, room in rooms.items()}
    return [(keyed[node][0], node) for node in sorted(rooms, key=keyed.__getitem__)]


def fewest(rooms: Mapping[int | None, int], quanta: int) -> list[int | None]:
    """Returns as few nodes, the freest first, as are needed for a quantity that no single one has."""
    chosen: list[int | None] = []
    for node in sorted(rooms, key=lambda node: (-rooms[node], -1 if node is None else node)):
        chosen.append(node)
        quanta -= rooms[node]
        if quanta <= 0:
            break
    return chosen


def level_out(rooms: Sequence[int], quanta: int) -> list[int]:
    """Divides a quantity, which the rooms have together, into parts as equal as they allow.

    A remainder goes to those with more room, then to the first. O(n log n).
    """
    parts = [0] * len(rooms)
    ascending = sorted(range(len(rooms)), key=lambda i: (rooms[i], -i))
    for done, i in enumerate(ascending):
        parts[i] = min(rooms[i], quanta // (len(ascending) - done))
        quanta -= parts[i]
    return parts
