"""Which of the agents that fit gets a kernel. A new placement is a function and a row of :data:`PLACEMENTS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from ai.backend.core.scheduling.index.agents import AgentIndex, Demand
from ai.backend.core.scheduling.index.fragmentation import FragmentationGradient


class Rng(Protocol):
    """The only dice of a decision: ``random.Random(seed)`` is one."""

    def random(self) -> float: ...


Placement = Callable[[AgentIndex, Demand, int, Rng], int]
"""The rank of an agent of a mask that seems to have room for a demand, -1 if none has. The allocator of the agent has
the last word: one that refuses is left out of the mask, and the question asked again."""


def first(scope: int) -> int:
    return (scope & -scope).bit_length() - 1


def concentrated(fleet: AgentIndex, demand: Demand, scope: int, _: Rng) -> int:
    """The fullest agent, so that whole agents stay free; accelerators are kept for those who need them."""
    for tier in demand.tiers:
        if (here := tier.scope & scope) and (found := tier.vectors.fullest(tier, here)):
            return first(found)
    return -1


def dispersed(fleet: AgentIndex, demand: Demand, scope: int, rng: Rng) -> int:
    """The emptiest agent; equals are drawn. Accelerators are kept as by :func:`concentrated`."""
    for tier in demand.tiers:
        if (here := tier.scope & scope) and (found := tier.vectors.emptiest(tier, here)):
            if not found & (found - 1):
                return first(found)
            start = int(rng.random() * fleet.size)
            after = found >> start
            return start + first(after) if after else first(found)
    return -1


def round_robin(fleet: AgentIndex, demand: Demand, scope: int, _: Rng) -> int:
    """The next agent after the one that was chosen last, in the order of their ids."""
    scope &= demand.fit()
    start = fleet.cursor + 1
    after = scope >> start
    return start + first(after) if after else first(scope)


def least_fragmentation(fleet: AgentIndex, demand: Demand, scope: int, _: Rng) -> int:
    """Where the least of the accelerators becomes unusable for what is usually requested."""
    scope &= demand.fit()
    if not scope:
        return -1
    if demand.gradient is None:
        demand.gradient = FragmentationGradient(demand.total, fleet.usual)
    return demand.gradient.best(fleet.agents, scope, fleet.changes)


PLACEMENTS: Mapping[str, Placement] = {
    "concentrated": concentrated,
    "dispersed": dispersed,
    "round-robin": round_robin,
    "least-fragmentation": least_fragmentation,
    "topology": concentrated,
    "topology-spread": dispersed,
}
"""``topology`` and ``topology-spread`` also say how the kernels of one session lie to each other, see topology.py."""
