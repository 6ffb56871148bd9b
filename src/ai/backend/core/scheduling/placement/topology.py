"""How the kernels of a session on several agents lie to each other. A new arrangement is a row of :data:`ARRANGEMENTS`.

An agent is in places, the widest first, as its operator names them: a zone, in it a rack. Rules:

* ``topology``: all kernels in one narrowest place, if one has room for all of them; of several the one with the fewest
  agents that fit, so that the roomier ones stay for larger sessions. Else in one of the next wider places, and so on;
  else anywhere. Wherever a session does not fit one narrowest place, its kernels take as few as this finds: those where
  others of them are, then the one with the most agents that fit.
* ``topology-spread``: each kernel where none of the others is: in another of the widest places, else in another
  narrower one, else on another agent.

Both prefer and never forbid: nobody waits because of them. Agents that name no place are in none. An arrangement says
in which masks of agents a seat is looked for; which agent of a mask it is, is the placement's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ai.backend.core.scheduling.index.agents import AgentIndex, Demand
from ai.backend.core.scheduling.index.equivalence import EquivalenceClass

MAX_TRIED = 16
"""So many places of one width are tried for a session at most."""


class Arrangement(NamedTuple):
    """
    Attributes:
        rooms: of a mask of agents, those parts of it that all kernels of a session are tried in, one after another.
        order: of such a part, the masks in which the next kernel is looked for; the ranks are the seats of the others.
    """

    rooms: Callable[[AgentIndex, EquivalenceClass, int], Iterator[int]]
    order: Callable[[AgentIndex, Demand, int, Sequence[int]], Iterator[int]]


def _one_place(fleet: AgentIndex, shape: EquivalenceClass, scope: int) -> Iterator[int]:
    open_ = [demand.fit() & scope for demand in dict.fromkeys(shape.parts)]
    for places in fleet.places:
        rooms = []
        for mask in places.values():
            here = [fit & mask for fit in open_]
            if all(here):
                rooms.append((sum(map(int.bit_count, here)), mask & scope))
        yield from (room for _, room in sorted(rooms)[:MAX_TRIED])
    yield scope


def _anywhere(fleet: AgentIndex, shape: EquivalenceClass, scope: int) -> Iterator[int]:
    yield scope


def _among(masks: Mapping[tuple[str, ...], int], ranks: Sequence[int]) -> int:
    """All agents of the places that have one of these agents."""
    found = 0
    for mask in masks.values():
        if any(mask >> rank & 1 for rank in ranks):
            found |= mask
    return found


def _close(fleet: AgentIndex, demand: Demand, scope: int, seats: Sequence[int]) -> Iterator[int]:
    beside = (_among(places, seats) & scope for places in fleet.places) if seats else ()
    for region in (*beside, scope):
        if fleet.places and (fit := demand.fit() & region):
            yield max((mask & fit for mask in fleet.places[0].values()), key=int.bit_count)
        yield region


def _apart(fleet: AgentIndex, demand: Demand, scope: int, seats: Sequence[int]) -> Iterator[int]:
    for places in reversed(fleet.places):
        yield scope & ~_among(places, seats)
    taken = 0
    for rank in seats:
        taken |= 1 << rank
    yield scope & ~taken
    yield scope


ARRANGEMENTS: Mapping[str, Arrangement] = {
    "topology": Arrangement(_one_place, _close),
    "topology-spread": Arrangement(_anywhere, _apart),
}
"""By the name of the placement."""
