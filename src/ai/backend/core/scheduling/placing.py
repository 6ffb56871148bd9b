"""Which of the agents that fit gets a kernel. A new placement is a function and a row of :data:`PLACEMENTS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from ai.backend.core.scheduling.fleet import Demand, Fleet
from ai.backend.core.scheduling.fragmentation import Gradient


class Rng(Protocol):
    """The only dice of a decision: ``random.Random(seed)`` is one."""

    def random(self) -> float: ...


Placement = Callable[[Fleet, Demand, int, Rng], int]
"""The rank of one agent of a mask that is not empty. All of its agents fit as far as the indexes know."""


def first(scope: int) -> int:
    return (scope & -scope).bit_length() - 1


def _spared(demand: Demand, scope: int) -> int:
    """Those of a mask that leave the fewest kinds of slots unused: accelerators are kept for those who need them."""
    return next((found for tier in demand.tiers if (found := tier & scope)), scope)


def concentrated(fleet: Fleet, demand: Demand, scope: int, _: Rng) -> int:
    """The fullest agent, so that whole agents stay free."""
    scope = _spared(demand, scope)
    for index, amount in demand.ranked:
        if not scope & (scope - 1):
            break
        scope = index.fullest(scope, amount)
    return first(scope)


def dispersed(fleet: Fleet, demand: Demand, scope: int, rng: Rng) -> int:
    """The emptiest agent; equals are drawn."""
    scope = _spared(demand, scope)
    for index, _ in demand.ranked:
        if not scope & (scope - 1):
            return first(scope)
        scope = index.emptiest(scope)
    start = int(rng.random() * fleet.size)
    after = scope >> start
    return start + first(after) if after else first(scope)


def round_robin(fleet: Fleet, demand: Demand, scope: int, _: Rng) -> int:
    """The next agent after the one that was chosen last, in the order of their ids."""
    start = fleet.cursor + 1
    after = scope >> start
    return start + first(after) if after else first(scope)


def least_fragmentation(fleet: Fleet, demand: Demand, scope: int, _: Rng) -> int:
    """Where the least of the accelerators becomes unusable for what is usually requested."""
    if demand.gradient is None:
        demand.gradient = Gradient(demand.total, fleet.usual)
    return demand.gradient.best(fleet.agents, scope, fleet.changes)


PLACEMENTS: Mapping[str, Placement] = {
    "concentrated": concentrated,
    "dispersed": dispersed,
    "round-robin": round_robin,
    "least-fragmentation": least_fragmentation,
}
