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
from ai.backend.core.scheduling.index.slot_index import members


class KernelAssignment(NamedTuple):
    """Assigns one kernel to an agent, by its rank, and to devices."""

    rank: int
    devices: DeviceAllocation


class EmptyAgents:
    """Tries kernels on copies of empty agents, without changing the index."""

    def __init__(self, index: AgentIndex, *, repaired: bool = False) -> None:
        self._index = index
        self._repaired = repaired
        self.used: dict[int, tuple[NodeAllocator, int]] = {}
        """The allocator and the number of kernels of each agent that has any, by its rank."""

    def _try_assign(self, rank: int, demand: Demand) -> bool:
        agent = self._index.agents[rank]
        node_class = agent.node_class.repaired if self._repaired else agent.node_class
        allocator, count = self.used.get(rank) or (node_class.without(agent.view.reserved), 0)
        limit = agent.view.kernel_limit
        if (limit is not None and count >= limit) or not can_allocate(allocator, demand.requests):
            return False
        self.used[rank] = allocator, count + 1
        return True

    def assign(self, demand: Demand, fresh: Iterable[int]) -> bool:
        """Puts one kernel on an agent that already has some, else on the first of ``fresh`` that accepts it."""
        used = [rank for rank in self.used if demand.supporting >> rank & 1]
        return any(self._try_assign(rank, demand) for rank in chain(used, fresh))


def fits_when_empty(index: AgentIndex, equivalence_class: EquivalenceClass, *, repaired: bool = False) -> bool:
    """Returns True if empty agents (optionally with every device healthy) can hold all kernels of a multi-node session.

    A session needs at most one agent for each kernel, so at most that many of each class, limit and reserve are tried.
    """
    empty_agents = EmptyAgents(index, repaired=repaired)
    few: set[int] = set()
    for mask in index.node_classes.values():
        alike: Counter[tuple[int | None, ResourceSlot]] = Counter()
        for rank in members(mask):
            view = index.agents[rank].view
            kind = view.kernel_limit, view.reserved
            alike[kind] += 1
            if alike[kind] <= len(equivalence_class.parts):
                few.add(rank)
    order = sorted(few)
    return all(
        empty_agents.assign(demand, (r for r in order if demand.supporting >> r & 1))
        for demand in (equivalence_class.parts[i] for i in equivalence_class.hardest)
    )


def closest_agents(index: AgentIndex, equivalence_class: EquivalenceClass, scope: int) -> list[int] | None:
    """Returns as few agents of a mask as can hold a session once empty, the closest first; None if they cannot."""
    empty_agents = EmptyAgents(index)
    for i in equivalence_class.hardest:
        demand = equivalence_class.parts[i]
        remaining = index.capable(demand) & scope

        def nearest(remaining: int = remaining, demand: Demand = demand) -> Iterable[int]:
            for rank in empty_agents.used:
                remaining &= ~(1 << rank)
            while remaining:
                rank = index.closest(demand, remaining)
                remaining &= ~(1 << rank)
                yield rank

        if not empty_agents.assign(demand, nearest()):
            return None
    return list(empty_agents.used)
