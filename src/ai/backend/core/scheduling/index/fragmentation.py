"""Place where the least of the accelerators becomes unusable for what is usually requested.

A fragmentation gradient, in the sense of Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent" (ATC'23): of all agents the one whose fragmentation grows least. What is measured
differs from the paper; docs/decisions/0027-stranded-accelerators.md says how and why. Of one agent and one accelerator
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
    """What is usually requested with one accelerator slot, by unit of it.

    Attributes:
        need: companion slot -> (mean, deviation) of what one unit comes with.
        whole: number of devices -> how often so many whole ones are requested, of all requests.
    """

    need: dict[str, tuple[float, float]] = field(default_factory=dict)
    whole: dict[int, float] = field(default_factory=dict)


def usual(requests: Iterable[tuple[ResourceSlot, float]]) -> dict[str, TypicalRequest]:
    """Accelerator slot -> what is usual; ``requests``: with how often they occur."""
    seen = [(r.nonzero(), count) for r, count in requests]
    everything = sum(count for _, count in seen)
    found: dict[str, TypicalRequest] = {}
    for slot in sorted({slot for r, _ in seen for slot in r} - set(_COMPANIONS)):
        here = [(r, float(r[slot]), count) for r, count in seen if r[slot].is_finite() and r[slot]]
        units = sum(amount * count for _, amount, count in here)
        made = found[slot] = TypicalRequest()
        for name in _COMPANIONS if units else ():
            mean = sum(float(r[name]) * count for r, _, count in here) / units
            spread = sum((float(r[name]) - mean * amount) ** 2 * count for r, amount, count in here) / units
            if mean:
                made.need[name] = mean, sqrt(spread)
        for _, amount, count in here:
            if amount >= 1 and amount == int(amount):
                made.whole[int(amount)] = made.whole.get(int(amount), 0.0) + count / everything
    return found


def _excess(units: float, have: float, mean: float, deviation: float) -> float:
    """The expected units that find nothing of a companion slot: E[max(0, N(units * mean, ...) - have)] / mean."""
    spread, lack = deviation * sqrt(units), units * mean - have
    if spread <= 0:
        return max(0.0, lack) / mean
    z = lack / spread
    if z < -6:
        return 0.0
    density = exp(-z * z / 2) / sqrt(2 * pi)
    return min(units, (lack * (1 + erf(z / sqrt(2))) / 2 + spread * density) / mean)


def lost(what: TypicalRequest, units: float, whole: int, free: Mapping[str, float]) -> float:
    """How many units of an accelerator that an agent has free are lost to what is usually requested."""
    if units <= 0:
        return 0.0
    stranded = max((_excess(units, free[name], *need) for name, need in what.need.items()), default=0.0)
    return stranded + sum(p * (units - whole if whole >= k else units) for k, p in what.whole.items())


class FragmentationGradient:
    """Remembers, for one demand, what each agent would lose by it. Agents are looked at again when they have changed.

    Amortised O(agents that changed since, log agents) for each decision.
    """

    __slots__ = ("_demand", "_heap", "_seen", "_usual")

    def __init__(self, demand: ResourceSlot, what: dict[str, TypicalRequest]) -> None:
        self._demand = {slot: float(q) for slot, q in demand.items()}
        self._usual = what
        self._heap: list[Candidate] = []
        self._seen = -1

    def best(self, agents: list[AgentState], scope: int, changes: list[int]) -> int:
        """The rank of the agent of a mask that loses least. ``changes``: the ranks of agents in the order in which
        they changed."""
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
        books = agent.books
        key = (
            agent.make,
            *(tuple(sorted(books[s].levels.items())) if s in books else () for s in self._usual),
            *(books[s].total_free if s in books else 0 for s in _COMPANIONS),
        )
        if key not in memo:
            memo[key] = self._judge(agent)
        return *memo[key], rank, agent.version

    def _judge(self, agent: AgentState) -> tuple[float, int, float]:
        demand, books = self._demand, agent.books
        before = {name: units_of(books[name]) for name in _COMPANIONS if name in books}
        after = {name: amount - demand.get(name, 0.0) for name, amount in before.items()}
        for name in _COMPANIONS:
            before.setdefault(name, 0.0)
            after.setdefault(name, 0.0)
        total = 0.0
        for slot, what in self._usual.items():
            book = books.get(slot)
            if book is None:
                continue
            units, wanted = units_of(book), demand.get(slot, 0.0)
            left, taken = self._part(book, wanted)
            total += lost(what, units - wanted, book.whole - taken, after) - lost(what, units, book.whole, before)
            total += left
        unused = len(agent.make.kinds - demand.keys())
        return round(total, 9), unused, after["cpu"]

    @staticmethod
    def _part(book: SlotPool, wanted: float) -> tuple[float, int]:
        """What stays free on the device that gives a part, and how many whole devices are no longer whole."""
        quanta = round(wanted / float(book.quantum))
        if not quanta or not book.largest:
            return 0.0, 0
        if quanta >= book.largest:
            return 0.0, -(-quanta // book.largest)
        at = bisect_left(book.order, quanta)
        level = book.order[at] if at < len(book.order) else book.largest
        return float((level - quanta) * book.quantum), int(level == book.largest)


def units_of(book: SlotPool) -> float:
    """What is free, as a float."""
    return float(book.total_free * book.quantum)
