"""Places all kernels of a multi-node session, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.allocation.node import NodeAllocator
from ai.backend.core.scheduling.index.agent_state import can_allocate
from ai.backend.core.scheduling.index.agents import AgentIndex, Demand
from ai.backend.core.scheduling.index.equivalence import EquivalenceClass
from ai.backend.core.scheduling.index.slot_index import ranks_in_mask


class KernelAssignment(NamedTuple):
    """Assigns one kernel to devices of an agent. The agent is given by its rank."""

    rank: int
    devices: DeviceAllocation


class EmptyAgents:
    """Tries kernels on copies of empty agents, without changing the index."""

    def __init__(self, index: AgentIndex, *, is_repaired: bool = False) -> None:
        self._index = index
        self._repaired = is_repaired
        self.used: dict[int, tuple[NodeAllocator, int]] = {}
        """The allocator and the number of kernels of each agent that has any, by its rank."""

    def _try_assign(self, rank: int, demand: Demand) -> bool:
        agent = self._index.agents[rank]
        node_class = agent.node_class.repaired_class if self._repaired else agent.node_class
        allocator, kernel_count = self.used.get(rank) or (node_class.allocator_without(agent.view.reserved), 0)
        kernel_limit = agent.view.kernel_limit
        if (kernel_limit is not None and kernel_count >= kernel_limit) or not can_allocate(allocator, demand.requests):
            return False
        self.used[rank] = allocator, kernel_count + 1
        return True

    def assign(self, demand: Demand, unused_ranks: Iterable[int]) -> bool:
        """Assigns one kernel to an agent in use, or else to the first of ``unused_ranks`` that accepts the kernel."""
        used_ranks = [rank for rank in self.used if demand.supporting_mask >> rank & 1]
        return any(self._try_assign(rank, demand) for rank in chain(used_ranks, unused_ranks))


def fits_when_empty(index: AgentIndex, equivalence_class: EquivalenceClass, *, is_repaired: bool = False) -> bool:
    """Returns True if empty agents (optionally with every device healthy) can hold all kernels of a multi-node session.

    A session needs at most one agent for each kernel, so at most that many of each class, limit and reserve are tried.
    """
    empty_agents = EmptyAgents(index, is_repaired=is_repaired)
    tried_ranks: set[int] = set()
    for mask in index.node_classes.values():
        count_of_kind: Counter[tuple[int | None, ResourceSlot]] = Counter()
        for rank in ranks_in_mask(mask):
            view = index.agents[rank].view
            agent_kind = view.kernel_limit, view.reserved
            count_of_kind[agent_kind] += 1
            if count_of_kind[agent_kind] <= len(equivalence_class.parts):
                tried_ranks.add(rank)
    rank_order = sorted(tried_ranks)
    return all(
        empty_agents.assign(
            demand, (agent_rank for agent_rank in rank_order if demand.supporting_mask >> agent_rank & 1)
        )
        for demand in (equivalence_class.parts[kernel_index] for kernel_index in equivalence_class.hardest)
    )


def closest_agents(index: AgentIndex, equivalence_class: EquivalenceClass, agent_mask: int) -> list[int] | None:
    """Returns the fewest agents of a mask that can hold a session once they are empty, the closest first.

    Returns None if impossible.
    """
    empty_agents = EmptyAgents(index)
    for kernel_index in equivalence_class.hardest:
        demand = equivalence_class.parts[kernel_index]
        remaining_mask = index.capable_mask(demand) & agent_mask

        def nearest_ranks(remaining_mask: int = remaining_mask, demand: Demand = demand) -> Iterable[int]:
            for rank in empty_agents.used:
                remaining_mask &= ~(1 << rank)
            while remaining_mask:
                rank = index.closest_rank(demand, remaining_mask)
                remaining_mask &= ~(1 << rank)
                yield rank

        if not empty_agents.assign(demand, nearest_ranks()):
            return None
    return list(empty_agents.used)
