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

MAX_TRIED = 16
"""The most locations of one width that are tried for a session."""


class Arrangement(NamedTuple):
    """Arranges kernels: ``rooms`` yields the parts of a mask to try for all of them, ``order`` the masks in a part for
    the next one, beside the ranks of the others."""

    rooms: Callable[[AgentIndex, EquivalenceClass, int], Iterator[int]]
    order: Callable[[AgentIndex, Demand, int, Sequence[int]], Iterator[int]]


def _one_place(index: AgentIndex, equivalence_class: EquivalenceClass, scope: int) -> Iterator[int]:
    open_ = [demand.fit() & scope for demand in dict.fromkeys(equivalence_class.parts)]
    for places in index.places:
        rooms = []
        for mask in places.values():
            fitting = [fit & mask for fit in open_]
            if all(fitting):
                rooms.append((sum(map(int.bit_count, fitting)), mask & scope))
        yield from (room for _, room in sorted(rooms)[:MAX_TRIED])
    yield scope


def _anywhere(index: AgentIndex, equivalence_class: EquivalenceClass, scope: int) -> Iterator[int]:
    yield scope


def _among(masks: Mapping[tuple[str, ...], int], ranks: Sequence[int]) -> int:
    """Returns all agents of the locations that contain one of these agents."""
    result = 0
    for mask in masks.values():
        if any(mask >> rank & 1 for rank in ranks):
            result |= mask
    return result


def _close(index: AgentIndex, demand: Demand, scope: int, assignments: Sequence[int]) -> Iterator[int]:
    beside = (_among(places, assignments) & scope for places in index.places) if assignments else ()
    for region in (*beside, scope):
        if index.places and (fit := demand.fit() & region):
            yield max((mask & fit for mask in index.places[0].values()), key=int.bit_count)
        yield region


def _apart(index: AgentIndex, demand: Demand, scope: int, assignments: Sequence[int]) -> Iterator[int]:
    for places in reversed(index.places):
        yield scope & ~_among(places, assignments)
    taken = 0
    for rank in assignments:
        taken |= 1 << rank
    yield scope & ~taken
    yield scope


ARRANGEMENTS: Mapping[str, Arrangement] = {
    "topology": Arrangement(_one_place, _close),
    "topology-spread": Arrangement(_anywhere, _apart),
}
"""Arrangements by the name of the placement."""
