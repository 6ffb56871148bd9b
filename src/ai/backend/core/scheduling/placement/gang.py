"""Multi-node sessions: every kernel of them is placed, or none."""

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
    """Where one kernel goes: the rank of its agent, and the devices there."""

    rank: int
    devices: DeviceAllocation


def unassign(
    fleet: AgentIndex, shape: EquivalenceClass, kernel_ids: Sequence[KernelId], seats: Sequence[KernelAssignment | None]
) -> None:
    """Give back every seat that was taken a moment ago."""
    for kernel_id, seat in zip(kernel_ids, seats, strict=True):
        if seat is not None:
            fleet.undo(seat.rank, [kernel_id], set(shape.parts))


class EmptyAgents:
    """Empty agents that kernels are tried on, without touching the fleet."""

    def __init__(self, fleet: AgentIndex, *, mended: bool = False) -> None:
        self._fleet = fleet
        self._mended = mended
        self._open: dict[int, tuple[NodeAllocator, int]] = {}

    @property
    def ranks(self) -> Iterable[int]:
        return self._open

    def _make(self, rank: int) -> NodeClass:
        make = self._fleet.agents[rank].make
        return make.mended if self._mended else make

    def _seat(self, rank: int, demand: Demand) -> bool:
        agent = self._fleet.agents[rank]
        allocator, count = self._open.get(rank) or (self._make(rank).without(agent.view.reserved), 0)
        limit = agent.view.kernel_limit
        if limit is not None and count >= limit:
            return False
        try:
            for slots, requirements in demand.wishes:
                allocator.allocate(slots, requirements=requirements)
        except REFUSALS:
            return False
        self._open[rank] = allocator, count + 1
        return True

    def seat(self, demand: Demand, fresh: Iterable[int]) -> bool:
        """Put one kernel on an agent that has some already, else on the first of ``fresh`` that takes it."""
        here = [rank for rank in self._open if demand.supporting >> rank & 1]
        return any(self._seat(rank, demand) for rank in here) or any(self._seat(rank, demand) for rank in fresh)


def fits_when_empty(fleet: AgentIndex, shape: EquivalenceClass, *, mended: bool = False) -> bool:
    """Whether empty agents (with every device healthy) could hold all kernels of a multi-node session.

    No gang needs more agents than it has kernels, so that many of each make, limit and reserve are looked at.
    """
    hall = EmptyAgents(fleet, mended=mended)
    few: set[int] = set()
    for mask in fleet.makes.values():
        alike: Counter[tuple[int | None, ResourceSlot]] = Counter()
        for rank in members(mask):
            view = fleet.agents[rank].view
            kind = view.kernel_limit, view.reserved
            alike[kind] += 1
            if alike[kind] <= len(shape.parts):
                few.add(rank)
    order = sorted(few)
    return all(
        hall.seat(demand, (r for r in order if demand.supporting >> r & 1))
        for demand in (shape.parts[i] for i in shape.hardest)
    )


def closest_agents(fleet: AgentIndex, shape: EquivalenceClass, scope: int) -> list[int] | None:
    """The agents of a mask that a multi-node session should wait for: as few as can hold it once they are empty, those
    first that lack least. None if they cannot hold it all."""
    hall = EmptyAgents(fleet)
    for i in shape.hardest:
        demand = shape.parts[i]
        left = fleet.able(demand) & scope

        def nearest(left: int = left, demand: Demand = demand) -> Iterable[int]:
            for rank in hall.ranks:
                left &= ~(1 << rank)
            while left:
                rank = fleet.closest(demand, left)
                left &= ~(1 << rank)
                yield rank

        if not hall.seat(demand, nearest()):
            return None
    return list(hall.ranks)
