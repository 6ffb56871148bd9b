"""Arranges the kernels of a multi-node session by location. A new arrangement is a row of :data:`ARRANGEMENTS`.

An agent is in places, the widest first, as its operator names them: a zone, in it a rack. Rules:

* ``topology``: all kernels in one narrowest place, if one has room for all of them; of several the one with the fewest
  agents that fit, so that the roomier ones stay for larger sessions. Else in one of the next wider places, and so on;
  else anywhere. Wherever a session does not fit one narrowest place, its kernels take as few as this finds: those where
  others of them are, then the one with the most agents that fit.
* ``topology-spread``: each kernel apart from the others: in another of the widest places, else in another
  narrower one, else on another agent.

Both are preferences: no session waits because of them. Agents without a location are in no place. An arrangement says
in which masks of agents a kernel is placed; the placement chooses the agent of a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ai.backend.core.scheduling.index.agents import AgentIndex, Demand
from ai.backend.core.scheduling.index.equivalence import EquivalenceClass
from ai.backend.core.scheduling.index.slot_index import mask_of

MAX_TRIED_LOCATIONS = 16
"""The largest number of locations of one width that are tried for a session."""


class Arrangement(NamedTuple):
    """Defines in which order agents are tried for the kernels of a multi-node session.

    ``scopes`` yields masks of agents to try for all kernels together. ``order`` yields masks within such a scope to try
    for the next kernel, given the ranks of the agents that were chosen.
    """

    scopes: Callable[[AgentIndex, EquivalenceClass, int], Iterator[int]]
    order: Callable[[AgentIndex, Demand, int, Sequence[int]], Iterator[int]]


def _location_masks(index: AgentIndex, equivalence_class: EquivalenceClass, agent_mask: int) -> Iterator[int]:
    open_masks = [demand.fitting_mask() & agent_mask for demand in dict.fromkeys(equivalence_class.parts)]
    for mask_of_location in index.location_tables:
        counted_masks = []
        for mask in mask_of_location.values():
            fitting_masks = [fitting_mask & mask for fitting_mask in open_masks]
            if all(fitting_masks):
                counted_masks.append((sum(map(int.bit_count, fitting_masks)), mask & agent_mask))
        yield from (room_mask for _, room_mask in sorted(counted_masks)[:MAX_TRIED_LOCATIONS])
    yield agent_mask


def _all_agents_mask(index: AgentIndex, equivalence_class: EquivalenceClass, agent_mask: int) -> Iterator[int]:
    yield agent_mask


def _mask_of_locations(masks: Mapping[tuple[str, ...], int], ranks: Sequence[int]) -> int:
    """Returns all agents of the locations that contain one of these agents."""
    location_mask = 0
    for mask in masks.values():
        if any(mask >> rank & 1 for rank in ranks):
            location_mask |= mask
    return location_mask


def _close_masks(index: AgentIndex, demand: Demand, agent_mask: int, assigned_ranks: Sequence[int]) -> Iterator[int]:
    """Yields masks of agents in the order of trial: agents nearest to the assigned agents first, all agents last."""
    nearby_masks = (
        (
            _mask_of_locations(mask_of_location, assigned_ranks) & agent_mask
            for mask_of_location in index.location_tables
        )
        if assigned_ranks
        else ()
    )
    for region_mask in (*nearby_masks, agent_mask):
        if index.location_tables and (fitting_mask := demand.fitting_mask() & region_mask):
            yield max((mask & fitting_mask for mask in index.location_tables[0].values()), key=int.bit_count)
        yield region_mask


def _apart_masks(index: AgentIndex, demand: Demand, agent_mask: int, assigned_ranks: Sequence[int]) -> Iterator[int]:
    """Yields masks of agents in the order of trial: agents farthest from the assigned agents first, all agents last."""
    for mask_of_location in reversed(index.location_tables):
        yield agent_mask & ~_mask_of_locations(mask_of_location, assigned_ranks)
    yield agent_mask & ~mask_of(assigned_ranks, index.size)
    yield agent_mask


ARRANGEMENTS: Mapping[str, Arrangement] = {
    "topology": Arrangement(_location_masks, _close_masks),
    "topology-spread": Arrangement(_all_agents_mask, _apart_masks),
}
"""Arrangements by the name of the placement."""
