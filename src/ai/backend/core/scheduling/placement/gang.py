"""Places all kernels of a multi-node session, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.ids import KernelId
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.allocation.node import NodeAllocator
from ai.backend.core.scheduling.index.agent_state import REFUSALS, NodeClass
from ai.backend.core.scheduling.index.agents import AgentIndex, Demand
from ai.backend.core.scheduling.index.equivalence import EquivalenceClass
from ai.backend.core.scheduling.index.slot_index import members


class KernelAssignment(NamedTuple):
    """Assigns one kernel to an agent, by its rank, and to devices."""

    rank: int
    devices: DeviceAllocation


def unassign(
    index: AgentIndex,
    equivalence_class: EquivalenceClass,
    kernel_ids: Sequence[KernelId],
    assignments: Sequence[KernelAssignment | None],
) -> None:
    """Releases assignments that were just made."""
    for kernel_id, assignment in zip(kernel_ids, assignments, strict=True):
        if assignment is not None:
            index.undo(assignment.rank, [kernel_id], set(equivalence_class.parts))


class EmptyAgents:
    """Tries kernels on copies of empty agents, without changing the index."""

    def __init__(self, index: AgentIndex, *, repaired: bool = False) -> None:
        self._index = index
        self._mended = repaired
        self._open: dict[int, tuple[NodeAllocator, int]] = {}

    @property
    def ranks(self) -> Iterable[int]:
        return self._open

    def _node_class(self, rank: int) -> NodeClass:
        node_class = self._index.agents[rank].node_class
        return node_class.repaired if self._mended else node_class

    def _try_assign(self, rank: int, demand: Demand) -> bool:
        agent = self._index.agents[rank]
        allocator, count = self._open.get(rank) or (self._node_class(rank).without(agent.view.reserved), 0)
        limit = agent.view.kernel_limit
        if limit is not None and count >= limit:
            return False
        try:
            for slots, requirements in demand.requests:
                allocator.allocate(slots, requirements=requirements)
        except REFUSALS:
            return False
        self._open[rank] = allocator, count + 1
        return True

    def assign(self, demand: Demand, fresh: Iterable[int]) -> bool:
        """Puts one kernel on an agent that already has some, else on the first of ``fresh`` that accepts it."""
        opened = [rank for rank in self._open if demand.supporting >> rank & 1]
        return any(self._try_assign(rank, demand) for rank in opened) or any(
            self._try_assign(rank, demand) for rank in fresh
        )


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
    """Returns the agents of a mask that a multi-node session should wait for: as few as can hold it once empty, those
    that lack least first. None if they cannot hold it."""
    empty_agents = EmptyAgents(index)
    for i in equivalence_class.hardest:
        demand = equivalence_class.parts[i]
        remaining = index.capable(demand) & scope

        def nearest(remaining: int = remaining, demand: Demand = demand) -> Iterable[int]:
            for rank in empty_agents.ranks:
                remaining &= ~(1 << rank)
            while remaining:
                rank = index.closest(demand, remaining)
                remaining &= ~(1 << rank)
                yield rank

        if not empty_agents.assign(demand, nearest()):
            return None
    return list(empty_agents.ranks)
