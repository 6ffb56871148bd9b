"""Chooses one of the agents that fit. A new placement is a function and a row of :data:`PLACEMENTS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from ai.backend.core.scheduling.index.agents import AgentIndex, Demand
from ai.backend.core.scheduling.index.fragmentation import FragmentationGradient


class Rng(Protocol):
    """The only source of randomness of a decision, such as ``random.Random(seed)``."""

    def random(self) -> float: ...


Placement = Callable[[AgentIndex, Demand, int, Rng], int]
"""Returns the rank of an agent of a mask that seems to have room for a demand, -1 if none has. If the agent's allocator
refuses, the function is called again without that agent."""


def first(scope: int) -> int:
    return (scope & -scope).bit_length() - 1


def concentrated(index: AgentIndex, demand: Demand, scope: int, _: Rng) -> int:
    """Chooses the fullest agent, so that whole agents stay free. Prefers agents without unneeded accelerators: those
    whose devices have the fewest kinds of slots that the demand leaves unused, reserved for the agent or not."""
    for fit_class in demand.fit_classes:
        if (candidates := fit_class.scope & scope) and (best := fit_class.vectors.fullest(fit_class, candidates)):
            return first(best)
    return -1


def dispersed(index: AgentIndex, demand: Demand, scope: int, rng: Rng) -> int:
    """Chooses the emptiest agent, a random one of equals. Prefers agents without unneeded accelerators."""
    for fit_class in demand.fit_classes:
        if (candidates := fit_class.scope & scope) and (best := fit_class.vectors.emptiest(fit_class, candidates)):
            if not best & (best - 1):
                return first(best)
            start = int(rng.random() * index.size)
            after = best >> start
            return start + first(after) if after else first(best)
    return -1


def round_robin(index: AgentIndex, demand: Demand, scope: int, _: Rng) -> int:
    """Chooses the next agent after the last choice, in the order of ids."""
    scope &= demand.fit()
    start = index.cursor + 1
    after = scope >> start
    return start + first(after) if after else first(scope)


def least_fragmentation(index: AgentIndex, demand: Demand, scope: int, _: Rng) -> int:
    """Chooses the agent on which the least of the accelerators becomes unusable for typical requests."""
    scope &= demand.fit()
    if not scope:
        return -1
    if demand.gradient is None:
        demand.gradient = FragmentationGradient(demand.total, index.typical_requests)
    return demand.gradient.best(index.agents, scope, index.changes)


PLACEMENTS: Mapping[str, Placement] = {
    "concentrated": concentrated,
    "dispersed": dispersed,
    "round-robin": round_robin,
    "least-fragmentation": least_fragmentation,
    "topology": concentrated,
    "topology-spread": dispersed,
}
"""``topology`` and ``topology-spread`` also arrange the kernels of one session, see topology.py."""
