"""Orders NUMA nodes, and interleaves a quantity over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ai.backend.common.devices import AllocationStrategy
from ai.backend.core.allocation.alloc_map import AffinityHint


def node_sort_key(
    node: int | None, free_quanta: int, hint: AffinityHint, strategy: AllocationStrategy
) -> tuple[int, int, int]:
    """Returns the sort key of a NUMA node; preferred nodes sort first. The first part is the closeness to the hint.

    Nodes of the hint come first, then devices of no known node, then the rest. Among equals, EVENLY prefers the node
    with the most free, the other strategies the one with the least, so that whole nodes stay free.
    """
    closeness = 0 if node in hint.numa_nodes else 1 if node is None else 2
    return (
        closeness,
        -free_quanta if strategy is AllocationStrategy.EVENLY else free_quanta,
        -1 if node is None else node,
    )


def order_nodes(
    free_of: Mapping[int | None, int], hint: AffinityHint, strategy: AllocationStrategy
) -> list[tuple[int, int | None]]:
    """Returns (closeness, node) of each node, best first."""
    sort_keys = {node: node_sort_key(node, free_quanta, hint, strategy) for node, free_quanta in free_of.items()}
    return [(sort_keys[node][0], node) for node in sorted(free_of, key=sort_keys.__getitem__)]


def fewest_nodes(free_of: Mapping[int | None, int], quanta: int) -> list[int | None]:
    """Returns the fewest NUMA nodes that together have the quantity free, the nodes with most free first."""
    chosen_nodes: list[int | None] = []
    for node in sorted(free_of, key=lambda node: (-free_of[node], -1 if node is None else node)):
        chosen_nodes.append(node)
        quanta -= free_of[node]
        if quanta <= 0:
            break
    return chosen_nodes


def divide_evenly(free_quanta: Sequence[int], quanta: int) -> list[int]:
    """Divides a quantity into parts that are as equal as the free amounts allow.

    A remainder goes to those with more free, then to the first. O(n log n).
    """
    parts = [0] * len(free_quanta)
    ascending_indexes = sorted(range(len(free_quanta)), key=lambda place: (free_quanta[place], -place))
    for filled_count, index in enumerate(ascending_indexes):
        parts[index] = min(free_quanta[index], quanta // (len(ascending_indexes) - filled_count))
        quanta -= parts[index]
    return parts
