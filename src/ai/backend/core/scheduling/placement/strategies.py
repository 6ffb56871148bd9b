"""Chooses one of the agents that have room for a demand.

A new placement is a function and a row of :data:`PLACEMENTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from ai.backend.core.scheduling.index.agents import AgentIndex, Demand
from ai.backend.core.scheduling.index.gradient import FragmentationGradient


class Rng(Protocol):
    """The only source of randomness of a decision, such as ``random.Random(seed)``."""

    def random(self) -> float: ...


Placement = Callable[[AgentIndex, Demand, int, Rng], int]
"""Returns the rank of an agent of a mask that seems to have room for a demand, -1 if none has. If the agent's allocator
refuses, the function is called again without that agent."""


def first_rank(agent_mask: int) -> int:
    return (agent_mask & -agent_mask).bit_length() - 1


def concentrated(index: AgentIndex, demand: Demand, agent_mask: int, _: Rng) -> int:
    """Chooses the fullest agent that fits, so that other agents stay empty.

    Prefers agents without unneeded accelerators: those whose devices have the fewest kinds of slots that the demand
    leaves unused, reserved for the agent or not.
    """
    for fit_class in demand.fit_classes:
        if (candidate_mask := fit_class.agent_mask & agent_mask) and (
            best_mask := fit_class.vectors.fullest_mask(fit_class, candidate_mask)
        ):
            return first_rank(best_mask)
    return -1


def dispersed(index: AgentIndex, demand: Demand, agent_mask: int, rng: Rng) -> int:
    """Chooses the emptiest agent that fits, and a random one of equally empty agents.

    Prefers agents without unneeded accelerators.
    """
    for fit_class in demand.fit_classes:
        if (candidate_mask := fit_class.agent_mask & agent_mask) and (
            best_mask := fit_class.vectors.emptiest_mask(fit_class, candidate_mask)
        ):
            if not best_mask & (best_mask - 1):
                return first_rank(best_mask)
            start_rank = int(rng.random() * index.size)
            later_mask = best_mask >> start_rank
            return start_rank + first_rank(later_mask) if later_mask else first_rank(best_mask)
    return -1


def round_robin(index: AgentIndex, demand: Demand, agent_mask: int, _: Rng) -> int:
    """Chooses the next agent after the last chosen agent, in the order of ids."""
    agent_mask &= demand.fitting_mask()
    start_rank = index.cursor + 1
    later_mask = agent_mask >> start_rank
    return start_rank + first_rank(later_mask) if later_mask else first_rank(agent_mask)


def least_fragmentation(index: AgentIndex, demand: Demand, agent_mask: int, _: Rng) -> int:
    """Chooses the agent on which the least of the accelerators becomes unusable for typical requests."""
    if demand.gradient is None:
        demand.gradient = FragmentationGradient(demand.total, frozenset(demand.prepared_requests))
    return demand.gradient.best_rank(index.free_states, agent_mask)


PLACEMENTS: Mapping[str, Placement] = {
    "concentrated": concentrated,
    "dispersed": dispersed,
    "round-robin": round_robin,
    "least-fragmentation": least_fragmentation,
    "topology": concentrated,
    "topology-spread": dispersed,
}
"""``topology`` and ``topology-spread`` also arrange the kernels of one session, see topology.py."""
