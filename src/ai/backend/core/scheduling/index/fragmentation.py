"""Chooses the agent on which the least of the accelerators becomes unusable for typical requests.

A fragmentation gradient, in the sense of Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent" (ATC'23): of all agents the one whose fragmentation grows least. What is measured
differs from the paper; docs/decisions/0027-fragmentation-measure.md says how and why. Of one agent and one accelerator
slot with ``G`` units free, of which ``n`` devices are whole:

* stranded: the units that will find no cores or memory. Requests of ``G`` units together need ``G * mean`` cores, with
  a deviation of ``deviation * sqrt(G)``; what they need beyond the free cores, in expectation, is what strands.
* broken: requests of ``k`` whole devices can use ``n`` devices if ``n >= k``, else nothing of the agent; summed over
  ``k`` with how often it is requested.

A part of a device is best put where it leaves the least of that device.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import erf, exp, pi, sqrt

from ai.backend.common.slots import ResourceSlot
from ai.backend.core.allocation.slot_pool import SlotPool
from ai.backend.core.scheduling.index.agent_state import AgentState

_COMPANIONS = ("cpu", "mem")
Candidate = tuple[float, int, float, int, int]
"""(what is lost, kinds of slots left unused, cores left, rank, version of the agent)."""


@dataclass(slots=True)
class TypicalRequest:
    """What is typically requested with one accelerator slot, for each unit of it.

    Attributes:
        need: companion slot -> (mean, deviation) of what one unit comes with.
        whole: number of devices -> how often so many whole ones are requested, of all requests.
    """

    need: dict[str, tuple[float, float]] = field(default_factory=dict)
    whole: dict[int, float] = field(default_factory=dict)


def typical_requests(requests: Iterable[tuple[ResourceSlot, float]]) -> dict[str, TypicalRequest]:
    """Returns the typical request of each accelerator slot. ``requests``: (slots, how often they occur)."""
    seen = [(r.nonzero(), count) for r, count in requests]
    everything = sum(count for _, count in seen)
    result: dict[str, TypicalRequest] = {}
    for slot in sorted({slot for r, _ in seen for slot in r} - set(_COMPANIONS)):
        requested = [(r, float(r[slot]), count) for r, count in seen if r[slot].is_finite() and r[slot]]
        units = sum(amount * count for _, amount, count in requested)
        typical = result[slot] = TypicalRequest()
        for name in _COMPANIONS if units else ():
            mean = sum(float(r[name]) * count for r, _, count in requested) / units
            spread = sum((float(r[name]) - mean * amount) ** 2 * count for r, amount, count in requested) / units
            if mean:
                typical.need[name] = mean, sqrt(spread)
        for _, amount, count in requested:
            if amount >= 1 and amount == int(amount):
                typical.whole[int(amount)] = typical.whole.get(int(amount), 0.0) + count / everything
    return result


def _excess(units: float, have: float, mean: float, deviation: float) -> float:
    """Returns the expected units without enough of a companion slot: E[max(0, N(units * mean, ...) - have)] / mean."""
    spread, lack = deviation * sqrt(units), units * mean - have
    if spread <= 0:
        return max(0.0, lack) / mean
    z = lack / spread
    if z < -6:
        return 0.0
    density = exp(-z * z / 2) / sqrt(2 * pi)
    return min(units, (lack * (1 + erf(z / sqrt(2))) / 2 + spread * density) / mean)


def lost(what: TypicalRequest, units: float, whole: int, free: Mapping[str, float]) -> float:
    """Returns how many free units of an accelerator typical requests cannot use."""
    if units <= 0:
        return 0.0
    stranded = max((_excess(units, free[name], *need) for name, need in what.need.items()), default=0.0)
    return stranded + sum(p * (units - whole if whole >= k else units) for k, p in what.whole.items())


class FragmentationGradient:
    """Caches, for one demand, what each agent would lose by it; recomputes only agents that have changed."""

    __slots__ = ("_demand", "_heap", "_seen", "_typical")

    def __init__(self, demand: ResourceSlot, what: dict[str, TypicalRequest]) -> None:
        self._demand = {slot: float(q) for slot, q in demand.items()}
        self._typical = what
        self._heap: list[Candidate] = []
        self._seen = -1

    def best(self, agents: list[AgentState], scope: int, changes: list[int]) -> int:
        """Returns the rank of the agent of a mask that loses least. ``changes``: the changed agents in order."""
        if self._seen < 0:
            memo: dict[object, tuple[float, int, float]] = {}
            self._heap = [self._candidate(rank, agent, memo) for rank, agent in enumerate(agents) if scope >> rank & 1]
            heapify(self._heap)
        elif self._seen < len(changes):
            for rank in set(changes[self._seen :]):
                if scope >> rank & 1:
                    heappush(self._heap, self._candidate(rank, agents[rank], {}))
        self._seen = len(changes)
        aside: list[Candidate] = []
        found = -1
        while self._heap:
            top = self._heap[0]
            if top[4] != agents[top[3]].version:
                heappop(self._heap)
            elif scope >> top[3] & 1:
                found = top[3]
                break
            else:
                aside.append(heappop(self._heap))
        for candidate in aside:
            heappush(self._heap, candidate)
        if found < 0:
            # Agents that did not fit when they were looked at, and do now although they have not changed.
            self._seen = -1
            return self.best(agents, scope, changes)
        return found

    def _candidate(self, rank: int, agent: AgentState, memo: dict[object, tuple[float, int, float]]) -> Candidate:
        pools = agent.pools
        key = (
            agent.node_class,
            *(tuple(sorted(pools[s].levels.items())) if s in pools else () for s in self._typical),
            *(pools[s].total_free if s in pools else 0 for s in _COMPANIONS),
        )
        if key not in memo:
            memo[key] = self._loss(agent)
        return *memo[key], rank, agent.version

    def _loss(self, agent: AgentState) -> tuple[float, int, float]:
        demand, pools = self._demand, agent.pools
        before = {name: units_of(pools[name]) for name in _COMPANIONS if name in pools}
        after = {name: amount - demand.get(name, 0.0) for name, amount in before.items()}
        for name in _COMPANIONS:
            before.setdefault(name, 0.0)
            after.setdefault(name, 0.0)
        total = 0.0
        for slot, what in self._typical.items():
            pool = pools.get(slot)
            if pool is None:
                continue
            units, requested = units_of(pool), demand.get(slot, 0.0)
            remaining, taken = self._part(pool, requested)
            total += lost(what, units - requested, pool.whole - taken, after) - lost(what, units, pool.whole, before)
            total += remaining
        unused = len(agent.node_class.kinds - demand.keys())
        return round(total, 9), unused, after["cpu"]

    @staticmethod
    def _part(pool: SlotPool, wanted: float) -> tuple[float, int]:
        """Returns what stays free on a partially used device, and how many whole devices are no longer whole."""
        quanta = round(wanted / float(pool.quantum))
        if not quanta or not pool.largest:
            return 0.0, 0
        if quanta >= pool.largest:
            return 0.0, -(-quanta // pool.largest)
        at = bisect_left(pool.order, quanta)
        level = pool.order[at] if at < len(pool.order) else pool.largest
        return float((level - quanta) * pool.quantum), int(level == pool.largest)


def units_of(pool: SlotPool) -> float:
    """Returns the free amount as a float."""
    return float(pool.total_free * pool.quantum)
