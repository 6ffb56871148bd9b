"""Chooses the replica for each request to an endpoint (serving anchors 5).

First the revision: each gets exactly its weight in any window of requests. Then a replica of it: that of the session
key, or the one that has computed the prompt's beginning before, or the one with the fewest open requests; above
:data:`SCAN_LIMIT` replicas the better one of two that are drawn, which stays right when counts are a little old.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple, Protocol

import msgspec

from ai.backend.common.wire.appproxy import RouteInfo, RoutingKind
from ai.backend.core.proxy.routing import RouteKey, SmoothWeights, Target, key_of
from ai.backend.core.serving.prefixes import BLOCK_BYTES, PrefixIndex

SCAN_LIMIT = 32
SATURATION_TOKENS = 32_768
"""Uncached tokens that a replica may have to compute before others get the prompts that it knows: some seconds of work.
A smaller limit copies prompts to other replicas at each burst, where they displace others (``serving-routing``)."""
_MIN_HIT = 0.8
_EXPLORATION = 0.01
_BYTES_PER_TOKEN = 4
_RING_POINTS = 32
_DRAWS = 4
_SPAN = 2**64


class Dice(Protocol):
    """Generates seeded random numbers, as ``random.Random`` does."""

    def random(self) -> float: ...


class PickReason(StrEnum):
    """Names why a replica was chosen."""

    ONLY = "only"
    SESSION = "session"
    PREFIX = "prefix"
    LEAST_LOAD = "least-load"
    EXPLORATION = "exploration"


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the parts of a request by which its replica is chosen.

    ``tokens`` are estimated; ``session_key`` is any text that requests have in common which are to reach the same
    replica.
    """

    blocks: Sequence[bytes] = ()
    tokens: int = 0
    session_key: str = ""


class Pick(NamedTuple):
    """Holds a chosen replica and the reason.

    ``uncached_tokens`` count as its load until the first byte of its response.
    """

    target: Target
    revision: Hashable
    reason: PickReason
    uncached_tokens: int


@dataclass(slots=True)
class Load:
    """Describes the load of a replica: open requests, and tokens of prompts whose response has not begun."""

    requests: int = 0
    uncached_tokens: int = 0


@dataclass(slots=True)
class _Group:
    """Holds the replicas of one revision."""

    weight: float
    members: list[Target] = field(default_factory=list)
    ring: list[tuple[int, int]] = field(default_factory=list)

    def place_on_ring(self) -> None:
        """Places the members on the hash ring by their identity alone, so that every worker has the same ring."""
        ring_points = [
            (_ring_point(f"{target.route.session_id} {point_number}"), index)
            for index, target in enumerate(self.members)
            for point_number in range(_RING_POINTS)
        ]
        self.ring = sorted(ring_points)


def _ring_point(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


class ReplicaPicker:
    """Chooses among the routes of one endpoint by their loads. Deterministic for the same ``dice``.

    ``saturation_tokens``: as :data:`SATURATION_TOKENS`.
    """

    def __init__(
        self,
        routes: Iterable[RouteInfo] = (),
        *,
        kind: RoutingKind = RoutingKind.LEAST_OUTSTANDING,
        dice: Dice,
        saturation_tokens: int = SATURATION_TOKENS,
        index: PrefixIndex | None = None,
    ) -> None:
        self.kind = kind
        self._dice = dice
        self._saturation_tokens = saturation_tokens
        self._index = index or PrefixIndex()
        self._weights: SmoothWeights[Hashable] = SmoothWeights()
        self._groups: dict[Hashable, _Group] = {}
        self._places: dict[RouteKey, tuple[Hashable, Target]] = {}
        self.loads: dict[RouteKey, Load] = {}
        self.update(routes)

    def update(self, routes: Iterable[RouteInfo]) -> None:
        """Replaces the routes of the endpoint. Revisions that stay keep their turn, replicas that stay their load."""
        groups: dict[Hashable, _Group] = {}
        for route in routes:
            if route.traffic_ratio <= 0:
                continue
            if route.revision is not None:
                group = groups.setdefault(route.revision.id, _Group(route.revision.weight))
            else:
                group = groups.setdefault(route.traffic_ratio, _Group(0.0))
                group.weight += route.traffic_ratio
            group.members.append(Target(key_of(route), route))
        for revision, group in groups.items():
            old_group = self._groups.get(revision)
            if old_group is not None and old_group.members == group.members:
                group.ring = old_group.ring
        self._groups = groups
        self._places = {
            target.key: (revision_key, target) for revision_key, group in groups.items() for target in group.members
        }
        self._weights.retain(groups)
        load_of_replica = {
            target.key: self.loads.get(target.key) or Load() for group in groups.values() for target in group.members
        }
        for key in self.loads.keys() - load_of_replica.keys():
            self._index.forget(key)
        self.loads = load_of_replica

    @property
    def is_empty(self) -> bool:
        """Returns True if the endpoint has no replica at all."""
        return not self._groups

    def pick(self, prompt: Prompt, excluded: Container[RouteKey] = frozenset(), excluded_count: int = 0) -> Pick | None:
        """Returns the replica for a request.

        Returns None if all replicas are excluded. ``excluded_count`` zero: none is.
        """
        groups = self._groups
        if excluded_count:
            groups = {
                revision: remaining_group
                for revision, group in groups.items()
                if (remaining_group := _group_without(group, excluded)).members
            }
        if not groups:
            return None
        revision = self._choose_revision(groups, prompt.session_key)
        members, group = groups[revision].members, groups[revision]
        blocks = prompt.blocks if self.kind is RoutingKind.PREFIX else ()
        hit_blocks, reason = 0, PickReason.LEAST_LOAD
        if len(members) == 1:
            target, reason = members[0], PickReason.ONLY
            hit_blocks = self._holders(revision, blocks, excluded)[1] if blocks else 0
        elif prompt.session_key:
            target, reason = _target_on_ring(group, prompt.session_key), PickReason.SESSION
        elif blocks:
            holders, hit_blocks = self._holders(revision, blocks, excluded)
            target, hit_blocks, reason = self._choose_by_prefix(
                members, holders, hit_blocks, len(blocks), prompt.tokens
            )
        else:
            target = self._least_loaded(members)
        if blocks:
            self._index.add(target.key, blocks)
        uncached_tokens = max(0, prompt.tokens - hit_blocks * BLOCK_BYTES // _BYTES_PER_TOKEN)
        return Pick(target, revision, reason, uncached_tokens)

    def _choose_revision(self, groups: dict[Hashable, _Group], session_key: str) -> Hashable:
        if len(groups) == 1:
            return next(iter(groups))
        weights = {revision: group.weight for revision, group in groups.items() if group.weight > 0}
        if not weights:
            weights = dict.fromkeys(groups, 1.0)
        if not session_key:
            return self._weights.choose(weights)
        # The share of each revision in the space of keys: a changed weight moves no more sessions than it must.
        remaining_weight = _ring_point(f"revision {session_key}") / _SPAN * sum(weights.values())
        for revision in sorted(weights, key=str):
            remaining_weight -= weights[revision]
            if remaining_weight < 0:
                return revision
        return max(weights, key=str)

    def _least_loaded(self, members: list[Target]) -> Target:
        """Returns the member with the fewest open requests. Among equals, the one chosen longest ago is returned."""
        loads = self.loads
        if len(members) > SCAN_LIMIT:
            return min(
                self._draw_randomly(members),
                self._draw_randomly(members),
                key=lambda target: loads[target.key].requests,
            )
        chosen_target = min(members, key=lambda target: loads[target.key].requests)
        members.remove(chosen_target)
        members.append(chosen_target)
        return chosen_target

    def _draw_randomly(self, members: list[Target]) -> Target:
        return members[int(self._dice.random() * len(members))]

    def _holders(
        self, revision: Hashable, blocks: Sequence[bytes], excluded: Container[RouteKey]
    ) -> tuple[list[Target], int]:
        """Returns the members of a revision that have the longest prefix of a prompt, and the number of its blocks."""
        keys, hit_blocks = self._index.holders(blocks)
        revisions_and_targets = [self._places[key] for key in keys if key in self._places and key not in excluded]
        targets = [target for target_revision, target in revisions_and_targets if target_revision == revision]
        return targets, hit_blocks if targets else 0

    def _choose_by_prefix(
        self, members: list[Target], holders: list[Target], hit_blocks: int, block_count: int, prompt_tokens: int
    ) -> tuple[Target, int, PickReason]:
        """Chooses the replica that has most of the prompt, unless the replica is saturated.

        Otherwise chooses the least work among the holders and a few other replicas, with this prompt added.
        """
        loads = self.loads
        if self._dice.random() < _EXPLORATION:
            return self._draw_randomly(members), 0, PickReason.EXPLORATION
        if hit_blocks >= _MIN_HIT * block_count:
            # One replica keeps the prompt while it can: a copy elsewhere takes the place of other prompts.
            for target in holders:
                if loads[target.key].uncached_tokens <= self._saturation_tokens:
                    return target, hit_blocks, PickReason.PREFIX
        other_targets = members if len(members) <= SCAN_LIMIT else [self._draw_randomly(members) for _ in range(_DRAWS)]
        cached_tokens, holder_keys = hit_blocks * BLOCK_BYTES // _BYTES_PER_TOKEN, {target.key for target in holders}

        def load_with_prompt(target: Target) -> tuple[int, int]:
            load = loads[target.key]
            return load.uncached_tokens + max(
                0, prompt_tokens - (cached_tokens if target.key in holder_keys else 0)
            ), load.requests

        chosen_target = min([*holders, *other_targets], key=load_with_prompt)
        if len(members) <= SCAN_LIMIT:
            members.remove(chosen_target)
            members.append(chosen_target)
        return chosen_target, hit_blocks if chosen_target.key in holder_keys else 0, PickReason.LEAST_LOAD

    def begin(self, pick: Pick) -> None:
        """Counts a request at its replica."""
        if (load := self.loads.get(pick.target.key)) is not None:
            load.requests += 1
            load.uncached_tokens += pick.uncached_tokens

    def begin_response(self, pick: Pick) -> None:
        """Removes the tokens of a prompt from the load of its replica, because the response has begun or will never
        begin."""
        if (load := self.loads.get(pick.target.key)) is not None:
            load.uncached_tokens = max(0, load.uncached_tokens - pick.uncached_tokens)

    def end(self, pick: Pick) -> None:
        """Removes a request from the load of its replica."""
        if (load := self.loads.get(pick.target.key)) is not None:
            load.requests = max(0, load.requests - 1)


def _group_without(group: _Group, excluded: Container[RouteKey]) -> _Group:
    return _Group(group.weight, [target for target in group.members if target.key not in excluded])


def _target_on_ring(group: _Group, key: str) -> Target:
    if not group.ring:
        group.place_on_ring()
    ring_index = bisect_right(group.ring, (_ring_point(key), len(group.members)))
    return group.members[group.ring[ring_index % len(group.ring)][1]]


@dataclass(slots=True)
class RetryBudget:
    """Permits retries for a fraction of the requests, so that retries cannot double the load of an overloaded replica.

    A new budget has ``reserve`` retries, and never more.
    """

    ratio: float = 0.2
    reserve: float = 10.0
    _left: float = 10.0

    def count_request(self) -> None:
        self._left = min(self.reserve, self._left + self.ratio)

    def take(self) -> bool:
        """Returns True if one more retry may be made now."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
