"""Selects the best-linked devices for a request with the least harm to the devices that stay free.

Objective and bounds: docs/decisions/0050-link-affinity.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import comb
from typing import TypeVar

from ai.backend.common.devices import ComputeDevice, DeviceLink, LinkKind
from ai.backend.core.allocation.slot_pool import ranks

EXACT_SETS = 2000
"""Up to this number all sets are compared: every choice among 11 devices, 4 of 16, 2 of 63."""
_STARTS = 16
_STEPS = 100_000
_MAX_MEMO = 4096
T = TypeVar("T")
_MAX_BANDWIDTH = 2**20
_ORDER = list(LinkKind)
_NUMA, _SYSTEM = _ORDER.index(LinkKind.NUMA), _ORDER.index(LinkKind.SYSTEM)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Stores weights of device pairs: how badly two are linked, and what is lost where they are separated."""

    cost: list[list[int]]
    harm: list[list[int]]
    scale: int


def _width(link: DeviceLink) -> int:
    """Returns the bandwidth in 1/16 GiB/s; 0 if it is unknown or invalid."""
    bandwidth = link.bandwidth_gib_s or 0.0
    return int(min(bandwidth * 16, _MAX_BANDWIDTH)) if bandwidth > 0 else 0


def links_of(devices: Sequence[ComputeDevice]) -> Links | None:
    """Returns the links between devices; None if no device names one, so that all devices are equal."""
    if not any(device.links for device in devices):
        return None
    places = {device.device_id: i for i, device in enumerate(devices)}
    named = (
        (i, j, link.kind, _width(link))
        for i, device in enumerate(devices)
        for link in device.links
        if (j := places.get(link.peer, i)) != i
    )
    return Links(tuple(device.numa_node for device in devices), tuple(named))


class Links:
    """Weighs pairs of one plugin's devices by their links; lower is better.

    A pair that no device names is of kind NUMA if both are on one known node, else SYSTEM. If the two ends disagree,
    the better one counts.

    A set is judged by (number of its pairs of the worst kind, of the second worst, ..., missing bandwidth, pairs across
    NUMA nodes): the slowest link of a set is what collective communication waits for. Among equal sets the one is
    taken that leaves the best links among the devices that stay free; then the one of lowest rank. Each part is a sum
    over pairs, so the whole is one integer per pair, exact.

    The result is optimal where at most :data:`EXACT_SETS` sets exist; else a local optimum of at most 16 starts, in
    about :data:`_STEPS` steps, and never less than one set grown (devices * count). Answers are cached.
    """

    def __init__(self, nodes: Sequence[int | None], named: Sequence[tuple[int, int, LinkKind, int]]) -> None:
        """``named``: (device, device, kind, bandwidth in 1/16 GiB/s) as stated by either end."""
        self._nodes = nodes
        self._named = named
        self._memo: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._costs: dict[tuple[int, ...], tuple[int, int]] = {}

    @cached_property
    def _pairs(self) -> _Pairs:
        """The weights, computed lazily: most maps of a scheduler never allocate linked devices."""
        n = len(self._nodes)
        stated: dict[tuple[int, int], tuple[int, int]] = {}
        for i, j, link, wide in self._named:
            best = min(stated.get((j, i), (_SYSTEM + 1, 0)), (_ORDER.index(link), -wide))
            stated[i, j] = stated[j, i] = best
        pairs, widest = n * n, 2 * _MAX_BANDWIDTH
        # No sum over the pairs of one set reaches the next larger unit.
        across, missing = 1, pairs
        of_kind = [0, *(missing * widest * pairs**rank for rank in range(1, _SYSTEM + 1))]
        harms = [widest * pairs ** (_SYSTEM - rank) for rank in range(_SYSTEM + 1)]
        scale = 4 * pairs * (harms[0] + widest)
        cost, harm = [[0] * n for _ in range(n)], [[0] * n for _ in range(n)]
        shared: dict[tuple[int, int, bool], tuple[int, int]] = {}
        for i, a in enumerate(self._nodes):
            for j, b in enumerate(self._nodes[:i]):
                same = a == b
                kind, negative = stated.get((i, j), (_NUMA if same and a is not None else _SYSTEM, 0))
                lack = _MAX_BANDWIDTH + negative
                key = (kind, negative, same)
                if key not in shared:
                    shared[key] = (of_kind[kind] + lack * missing + (not same) * across, harms[kind] - negative)
                cost[i][j], harm[i][j] = cost[j][i], harm[j][i] = shared[key]
        return _Pairs(cost, harm, scale)

    # ---- judging

    def cost_of(self, chosen: tuple[int, ...], free: int) -> tuple[int, int]:
        """Returns how badly a set is linked, and the quality of the links that it cuts from other free devices."""
        key = (*chosen, -1, free)
        costs = self._costs.get(key)
        if costs is None:
            for i in chosen:
                free &= ~(1 << i)
            cost, harm, rest = self._pairs.cost, self._pairs.harm, list(ranks(free))
            costs = (
                sum([cost[i][j] for i, j in combinations(chosen, 2)]),
                sum([harm[i][j] for i in chosen for j in rest]),
            )
            _remember(self._costs, key, costs)
        return costs

    # ---- choosing

    def choose(self, candidates: int, count: int, taken: Sequence[int], free: int) -> Sequence[int]:
        """Returns the ``count`` candidates best linked with each other and with ``taken``, lowest rank first.

        ``free`` are the devices that could serve others, the candidates included.
        """
        key = (candidates, count, free, *taken)
        chosen = self._memo.get(key)
        if chosen is None:
            chosen = _Search(self._pairs, candidates, count, taken, free).best()
            _remember(self._memo, key, chosen)
        return chosen


def _remember(memo: dict[tuple[int, ...], T], key: tuple[int, ...], value: T) -> None:
    if len(memo) >= _MAX_MEMO:
        memo.clear()
    memo[key] = value


class _Search:
    """Searches the set with the least ``sum(single) + sum(weight of each pair)``."""

    def __init__(self, pairs: _Pairs, candidates: int, count: int, taken: Sequence[int], free: int) -> None:
        self._pairs = pairs
        self._count = count
        self._pool = list(ranks(candidates))
        for i in taken:
            free &= ~(1 << i)
        cost, harm, rest = pairs.cost, pairs.harm, list(ranks(free))
        self._single = {
            i: sum([harm[i][j] for j in rest]) + sum([cost[i][j] * pairs.scale - harm[i][j] for j in taken])
            for i in self._pool
        }

    def _pair(self, i: int, j: int) -> int:
        """Returns the weight of choosing both devices: their link cost without the harm that no longer applies."""
        return self._pairs.cost[i][j] * self._pairs.scale - 2 * self._pairs.harm[i][j]

    def _weight(self, chosen: Sequence[int]) -> int:
        return sum([self._single[i] for i in chosen]) + sum([self._pair(i, j) for i, j in combinations(chosen, 2)])

    def best(self) -> tuple[int, ...]:
        if comb(len(self._pool), self._count) <= EXACT_SETS:
            return min(combinations(self._pool, self._count), key=self._weight)
        step = len(self._pool) * self._count
        half = max(1, min(_STARTS, _STEPS // (2 * step)) // 2)
        # Half of the starts are those that are best linked with all others, half the first ones.
        starts = sorted(self._pool, key=lambda i: (-self._single[i], i))[:half]
        starts += [i for i in self._pool if i not in starts][:half]
        rounds = min(self._count, _STEPS // (2 * step * len(starts)))
        found = (tuple(sorted(self._improved(self._grown(start), rounds))) for start in starts)
        return min(found, key=lambda chosen: (self._weight(chosen), chosen))

    def _grown(self, start: int) -> list[int]:
        added = self._single.copy()
        chosen = [start]
        while len(chosen) < self._count:
            del added[chosen[-1]]
            for i in added:
                added[i] += self._pair(chosen[-1], i)
            chosen.append(min(added, key=lambda i: (added[i], i)))
        return chosen

    def _improved(self, chosen: list[int], rounds: int) -> list[int]:
        """Exchanges single devices while that improves the set."""
        load = {i: self._single[i] + sum([self._pair(i, j) for j in chosen if j != i]) for i in self._pool}
        for _ in range(rounds):
            outside = [i for i in self._pool if i not in chosen]
            gain, out, into = min((load[b] - self._pair(a, b) - load[a], a, b) for a in chosen for b in outside)
            if gain >= 0:
                break
            chosen[chosen.index(out)] = into
            for i in self._pool:
                load[i] += (i != into and self._pair(i, into)) - (i != out and self._pair(i, out))
        return chosen
