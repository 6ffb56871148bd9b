"""Selects the best-linked devices for a request with the least harm to the devices that stay free.

Objective and bounds: docs/decisions/0050-link-affinity.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from math import comb
from typing import TypeVar

import msgspec

from ai.backend.common.devices import ComputeDevice, DeviceLink, LinkKind
from ai.backend.core.allocation.slot_pool import ranks

MAX_COMPARED_SETS = 2000
"""Up to this number all sets are compared: every choice among 11 devices, 4 of 16, 2 of 63."""
_MAX_STARTS = 16
_MAX_SEARCH_STEPS = 100_000
_MAX_CACHED_SETS = 4096
T = TypeVar("T")
_MAX_BANDWIDTH = 2**20
_LINK_KINDS = list(LinkKind)
_NUMA_RANK, _SYSTEM_RANK = _LINK_KINDS.index(LinkKind.NUMA), _LINK_KINDS.index(LinkKind.SYSTEM)


class _Pairs(msgspec.Struct, frozen=True):
    """Stores two weights of each pair of devices: the cost of a bad link, and the loss if the two are separated."""

    link_cost: list[list[int]]
    separation_loss: list[list[int]]
    scale: int


def _bandwidth_16ths(link: DeviceLink) -> int:
    """Returns the bandwidth in 1/16 GiB/s; 0 if it is unknown or invalid."""
    bandwidth = link.bandwidth_gib_s or 0.0
    return int(min(bandwidth * 16, _MAX_BANDWIDTH)) if bandwidth > 0 else 0


def links_of(devices: Sequence[ComputeDevice]) -> Links | None:
    """Returns the links between devices. Returns None if no device states a link, so that all devices are equal."""
    if not any(device.links for device in devices):
        return None
    rank_of_id = {device.device_id: rank for rank, device in enumerate(devices)}
    stated_links = (
        (rank, peer_rank, device_link.kind, _bandwidth_16ths(device_link))
        for rank, device in enumerate(devices)
        for device_link in device.links
        if (peer_rank := rank_of_id.get(device_link.peer, rank)) != rank
    )
    return Links(tuple(device.numa_node for device in devices), tuple(stated_links))


class Links:
    """Weighs pairs of one plugin's devices by their links; lower is better.

    A pair that no device names is of kind NUMA if both are on one known node, else SYSTEM. If the two ends disagree,
    the better one counts.

    A set is judged by (number of its pairs of the worst kind, of the second worst, ..., missing bandwidth, pairs across
    NUMA nodes): the slowest link of a set is what collective communication waits for. Among equal sets the one is
    taken that leaves the best links among the devices that stay free; then the one of lowest rank. Each part is a sum
    over pairs, so the whole is one integer per pair, exact.

    The result is optimal where at most :data:`MAX_COMPARED_SETS` sets exist; else a local optimum of at most 16 starts,
    in about :data:`_MAX_SEARCH_STEPS` steps, and never less than one set grown (devices * count). Answers are cached.
    """

    def __init__(
        self, numa_nodes: Sequence[int | None], stated_links: Sequence[tuple[int, int, LinkKind, int]]
    ) -> None:
        """Stores ``stated_links``: (device, device, kind, bandwidth in 1/16 GiB/s) as stated by either end."""
        self._nodes = numa_nodes
        self._named = stated_links
        self._memo: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._costs: dict[tuple[int, ...], tuple[int, int]] = {}

    @cached_property
    def _pairs(self) -> _Pairs:
        """Returns the weights of all pairs of devices.

        They are computed at the first use, because most maps of a scheduler never allocate linked devices.
        """
        device_count = len(self._nodes)
        best_links: dict[tuple[int, int], tuple[int, int]] = {}
        for i, j, link_kind, bandwidth in self._named:
            best_link = min(best_links.get((j, i), (_SYSTEM_RANK + 1, 0)), (_LINK_KINDS.index(link_kind), -bandwidth))
            best_links[i, j] = best_links[j, i] = best_link
        pair_count, bandwidth_range = device_count * device_count, 2 * _MAX_BANDWIDTH
        # No sum over the pairs of one set reaches the next larger unit.
        across_nodes_unit, bandwidth_unit = 1, pair_count
        cost_of_kind = [
            0,
            *(bandwidth_unit * bandwidth_range * pair_count**rank for rank in range(1, _SYSTEM_RANK + 1)),
        ]
        loss_of_kind = [bandwidth_range * pair_count ** (_SYSTEM_RANK - rank) for rank in range(_SYSTEM_RANK + 1)]
        scale = 4 * pair_count * (loss_of_kind[0] + bandwidth_range)
        link_cost, separation_loss = (
            [[0] * device_count for _ in range(device_count)],
            [[0] * device_count for _ in range(device_count)],
        )
        weights_of_key: dict[tuple[int, int, bool], tuple[int, int]] = {}
        for i, node_i in enumerate(self._nodes):
            for j, node_j in enumerate(self._nodes[:i]):
                is_same_node = node_i == node_j
                kind, negative_bandwidth = best_links.get(
                    (i, j), (_NUMA_RANK if is_same_node and node_i is not None else _SYSTEM_RANK, 0)
                )
                missing_bandwidth = _MAX_BANDWIDTH + negative_bandwidth
                pair_key = (kind, negative_bandwidth, is_same_node)
                if pair_key not in weights_of_key:
                    weights_of_key[pair_key] = (
                        cost_of_kind[kind]
                        + missing_bandwidth * bandwidth_unit
                        + (not is_same_node) * across_nodes_unit,
                        loss_of_kind[kind] - negative_bandwidth,
                    )
                link_cost[i][j], separation_loss[i][j] = link_cost[j][i], separation_loss[j][i] = weights_of_key[
                    pair_key
                ]
        return _Pairs(link_cost, separation_loss, scale)

    # ---- judging

    def cost_of(self, chosen_ranks: tuple[int, ...], free_mask: int) -> tuple[int, int]:
        """Returns how badly the chosen devices are linked, and the quality of their links to the other free devices."""
        cache_key = (*chosen_ranks, -1, free_mask)
        costs = self._costs.get(cache_key)
        if costs is None:
            for rank in chosen_ranks:
                free_mask &= ~(1 << rank)
            link_cost, separation_loss, free_ranks = (
                self._pairs.link_cost,
                self._pairs.separation_loss,
                list(ranks(free_mask)),
            )
            costs = (
                sum([link_cost[rank][other_rank] for rank, other_rank in combinations(chosen_ranks, 2)]),
                sum([separation_loss[rank][other_rank] for rank in chosen_ranks for other_rank in free_ranks]),
            )
            _cache_value(self._costs, cache_key, costs)
        return costs

    # ---- choosing

    def choose(self, candidate_mask: int, count: int, taken_ranks: Sequence[int], free_mask: int) -> Sequence[int]:
        """Returns the ``count`` candidates best linked with each other and with ``taken_ranks``, lowest rank first.

        ``free_mask`` are the devices that could serve others, the candidates included.
        """
        cache_key = (candidate_mask, count, free_mask, *taken_ranks)
        chosen_ranks = self._memo.get(cache_key)
        if chosen_ranks is None:
            chosen_ranks = _Search(self._pairs, candidate_mask, count, taken_ranks, free_mask).find_best_set()
            _cache_value(self._memo, cache_key, chosen_ranks)
        return chosen_ranks


def _cache_value(memo: dict[tuple[int, ...], T], key: tuple[int, ...], value: T) -> None:
    if len(memo) >= _MAX_CACHED_SETS:
        memo.clear()
    memo[key] = value


class _Search:
    """Searches for the set of devices with the smallest total of the devices' costs and the pairs' weights.

    The total is ``sum(single) + sum(weight of each pair)``.
    """

    def __init__(
        self, pairs: _Pairs, candidate_mask: int, count: int, taken_ranks: Sequence[int], free_mask: int
    ) -> None:
        self._pairs = pairs
        self._count = count
        self._pool = list(ranks(candidate_mask))
        for rank in taken_ranks:
            free_mask &= ~(1 << rank)
        link_cost, separation_loss, other_ranks = pairs.link_cost, pairs.separation_loss, list(ranks(free_mask))
        self._single = {
            rank: sum([separation_loss[rank][other_rank] for other_rank in other_ranks])
            + sum(
                [
                    link_cost[rank][other_rank] * pairs.scale - separation_loss[rank][other_rank]
                    for other_rank in taken_ranks
                ]
            )
            for rank in self._pool
        }

    def _pair_weight(self, rank: int, other_rank: int) -> int:
        """Returns the weight of choosing both devices: their link cost minus the separation loss that is avoided."""
        return (
            self._pairs.link_cost[rank][other_rank] * self._pairs.scale
            - 2 * self._pairs.separation_loss[rank][other_rank]
        )

    def _weight_of_set(self, chosen_ranks: Sequence[int]) -> int:
        return sum([self._single[rank] for rank in chosen_ranks]) + sum(
            [self._pair_weight(rank, other_rank) for rank, other_rank in combinations(chosen_ranks, 2)]
        )

    def find_best_set(self) -> tuple[int, ...]:
        if comb(len(self._pool), self._count) <= MAX_COMPARED_SETS:
            return min(combinations(self._pool, self._count), key=self._weight_of_set)
        round_steps = len(self._pool) * self._count
        half_count = max(1, min(_MAX_STARTS, _MAX_SEARCH_STEPS // (2 * round_steps)) // 2)
        # Half of the starts are those that are best linked with all others, half the first ones.
        start_ranks = sorted(self._pool, key=lambda rank: (-self._single[rank], rank))[:half_count]
        start_ranks += [rank for rank in self._pool if rank not in start_ranks][:half_count]
        rounds = min(self._count, _MAX_SEARCH_STEPS // (2 * round_steps * len(start_ranks)))
        found_sets = (
            tuple(sorted(self._improve_set(self._grow_set(start_rank), rounds))) for start_rank in start_ranks
        )
        return min(found_sets, key=lambda chosen: (self._weight_of_set(chosen), chosen))

    def _grow_set(self, start_rank: int) -> list[int]:
        added_weights = self._single.copy()
        chosen_ranks = [start_rank]
        while len(chosen_ranks) < self._count:
            del added_weights[chosen_ranks[-1]]
            for rank in added_weights:
                added_weights[rank] += self._pair_weight(chosen_ranks[-1], rank)
            chosen_ranks.append(min(added_weights, key=lambda rank: (added_weights[rank], rank)))
        return chosen_ranks

    def _improve_set(self, chosen_ranks: list[int], rounds: int) -> list[int]:
        """Exchanges single devices while that improves the set."""
        weights = {
            rank: self._single[rank]
            + sum([self._pair_weight(rank, other_rank) for other_rank in chosen_ranks if other_rank != rank])
            for rank in self._pool
        }
        for _ in range(rounds):
            outside_ranks = [rank for rank in self._pool if rank not in chosen_ranks]
            weight_change, removed_rank, added_rank = min(
                (
                    weights[outer_rank] - self._pair_weight(inner_rank, outer_rank) - weights[inner_rank],
                    inner_rank,
                    outer_rank,
                )
                for inner_rank in chosen_ranks
                for outer_rank in outside_ranks
            )
            if weight_change >= 0:
                break
            chosen_ranks[chosen_ranks.index(removed_rank)] = added_rank
            for rank in self._pool:
                weights[rank] += (rank != added_rank and self._pair_weight(rank, added_rank)) - (
                    rank != removed_rank and self._pair_weight(rank, removed_rank)
                )
        return chosen_ranks
