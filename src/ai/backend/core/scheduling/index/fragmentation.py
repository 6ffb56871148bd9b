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
    """The usual companions of one accelerator slot, for each unit of it.

    Attributes:
        need: companion slot -> (mean, deviation) of what one unit comes with.
        whole: number of devices -> how often so many whole ones are requested, of all requests.
    """

    need: dict[str, tuple[float, float]] = field(default_factory=dict)
    whole: dict[int, float] = field(default_factory=dict)


def typical_requests(requests: Iterable[tuple[ResourceSlot, float]]) -> dict[str, TypicalRequest]:
    """Returns the typical request of each accelerator slot. ``requests``: (slots, how often they occur)."""
    counted = [(slots.nonzero(), count) for slots, count in requests]
    all_count = sum(count for _, count in counted)
    result: dict[str, TypicalRequest] = {}
    for slot in sorted({slot for slots, _ in counted for slot in slots} - set(_COMPANIONS)):
        requested = [
            (slots, float(slots[slot]), count) for slots, count in counted if slots[slot].is_finite() and slots[slot]
        ]
        units = sum(amount * count for _, amount, count in requested)
        typical = result[slot] = TypicalRequest()
        for name in _COMPANIONS if units else ():
            mean = sum(float(slots[name]) * count for slots, _, count in requested) / units
            variance = (
                sum((float(slots[name]) - mean * amount) ** 2 * count for slots, amount, count in requested) / units
            )
            if mean:
                typical.need[name] = mean, sqrt(variance)
        for _, amount, count in requested:
            if amount >= 1 and amount == int(amount):
                typical.whole[int(amount)] = typical.whole.get(int(amount), 0.0) + count / all_count
    return result


def _excess(units: float, free_amount: float, mean: float, deviation: float) -> float:
    """Returns the expected units without enough of a companion slot: E[max(0, N(units * mean, ...) - have)] / mean."""
    units_deviation, expected_lack = deviation * sqrt(units), units * mean - free_amount
    if units_deviation <= 0:
        return max(0.0, expected_lack) / mean
    z_score = expected_lack / units_deviation
    if z_score < -6:
        return 0.0
    density = exp(-z_score * z_score / 2) / sqrt(2 * pi)
    return min(units, (expected_lack * (1 + erf(z_score / sqrt(2))) / 2 + units_deviation * density) / mean)


def lost_units(typical: TypicalRequest, units: float, whole: int, free: Mapping[str, float]) -> float:
    """Returns how many free units of an accelerator typical requests cannot use."""
    if units <= 0:
        return 0.0
    stranded = max((_excess(units, free[companion], *need) for companion, need in typical.need.items()), default=0.0)
    return stranded + sum(
        probability * (units - whole if whole >= count else units) for count, probability in typical.whole.items()
    )


class FragmentationGradient:
    """Caches, for one demand, what each agent would lose by it; recomputes only agents that have changed."""

    __slots__ = ("_demand", "_heap", "_seen", "_typical")

    def __init__(self, demand: ResourceSlot, typical_requests: dict[str, TypicalRequest]) -> None:
        self._demand = {slot: float(quantity) for slot, quantity in demand.items()}
        self._typical = typical_requests
        self._heap: list[Candidate] = []
        self._seen = -1

    def best(self, agents: list[AgentState], agent_mask: int, changed_ranks: list[int]) -> int:
        """Returns the rank of the agent of a mask that loses least. ``changed_ranks``: the changed agents in order."""
        if self._seen < 0:
            loss_cache: dict[object, tuple[float, int, float]] = {}
            self._heap = [
                self._candidate(rank, agent, loss_cache) for rank, agent in enumerate(agents) if agent_mask >> rank & 1
            ]
            heapify(self._heap)
        elif self._seen < len(changed_ranks):
            for rank in set(changed_ranks[self._seen :]):
                if agent_mask >> rank & 1:
                    heappush(self._heap, self._candidate(rank, agents[rank], {}))
        self._seen = len(changed_ranks)
        outside_candidates: list[Candidate] = []
        best_rank = -1
        while self._heap and best_rank < 0:
            rank, version = self._heap[0][3:]
            if version != agents[rank].version:
                heappop(self._heap)
            elif agent_mask >> rank & 1:
                best_rank = rank
            else:
                outside_candidates.append(heappop(self._heap))
        for candidate in outside_candidates:
            heappush(self._heap, candidate)
        if best_rank < 0:
            # Agents that were not in the mask before, and have not changed since.
            self._seen = -1
            return self.best(agents, agent_mask, changed_ranks)
        return best_rank

    def _candidate(self, rank: int, agent: AgentState, loss_cache: dict[object, tuple[float, int, float]]) -> Candidate:
        pools = agent.pools
        cache_key = (
            agent.node_class,
            *(tuple(sorted(pools[slot].levels.items())) if slot in pools else () for slot in self._typical),
            *(pools[slot].total_free if slot in pools else 0 for slot in _COMPANIONS),
        )
        if cache_key not in loss_cache:
            loss_cache[cache_key] = self._loss(agent)
        return *loss_cache[cache_key], rank, agent.version

    def _loss(self, agent: AgentState) -> tuple[float, int, float]:
        demand, pools = self._demand, agent.pools
        before, after = dict.fromkeys(_COMPANIONS, 0.0), dict.fromkeys(_COMPANIONS, 0.0)
        for name in _COMPANIONS:
            if name in pools:
                before[name] = units_of(pools[name])
                after[name] = before[name] - demand.get(name, 0.0)
        loss = 0.0
        for slot, typical in self._typical.items():
            pool = pools.get(slot)
            if pool is None:
                continue
            units, requested = units_of(pool), demand.get(slot, 0.0)
            remaining, broken = self._part_loss(pool, requested)
            loss += lost_units(typical, units - requested, pool.whole - broken, after) - lost_units(
                typical, units, pool.whole, before
            )
            loss += remaining
        unused_kinds = len(agent.node_class.kinds - demand.keys())
        return round(loss, 9), unused_kinds, after["cpu"]

    @staticmethod
    def _part_loss(pool: SlotPool, requested: float) -> tuple[float, int]:
        """Returns what stays free on a partially used device, and how many whole devices are no longer whole."""
        quanta = round(requested / float(pool.quantum))
        if not quanta or not pool.largest:
            return 0.0, 0
        if quanta >= pool.largest:
            return 0.0, -(-quanta // pool.largest)
        level_index = bisect_left(pool.free_levels, quanta)
        level = pool.free_levels[level_index] if level_index < len(pool.free_levels) else pool.largest
        return float((level - quanta) * pool.quantum), int(level == pool.largest)


def units_of(pool: SlotPool) -> float:
    """Returns the free amount as a float."""
    return float(pool.total_free * pool.quantum)
