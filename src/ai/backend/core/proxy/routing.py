"""Chooses the route of each request of a circuit: by exact weights between groups, by fewest open requests inside a
group.

Routes with the same traffic ratio form a group, whose weight is the sum of their ratios: members of a revision are
symmetric, so that revisions are told apart by their ratios.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, NewType, TypeVar

from ai.backend.common.wire.appproxy import RouteInfo

RouteKey = NewType("RouteKey", str)
"""The identity of a route: a session at one address. A changed ratio leaves it the same route."""


class Target(NamedTuple):
    """Holds a route together with its identity."""

    key: RouteKey
    route: RouteInfo


def key_of(route: RouteInfo) -> RouteKey:
    """Returns the identity of a route."""
    gateway_name = route.gateway.name if route.gateway else ""
    return RouteKey(f"{route.session_id} {route.kernel_host} {route.kernel_port} {gateway_name}")


K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class SmoothWeights(Generic[K]):
    """Chooses keys in turn by their weights (smooth weighted round robin).

    With integer weights of sum W, any W choices in a row hold each key exactly as often as its weight says. Credits of
    keys that are left out of a choice are kept.
    """

    _credits: dict[K, float] = field(default_factory=dict)

    def choose(self, weights: Mapping[K, float]) -> K:
        """Returns the key whose turn it is by the weights, and updates the credits of all keys.

        ``weights`` has at least one key, and all are positive.
        """
        best_key: K | None = None
        best_credit = total_weight = 0.0
        for key, weight in weights.items():
            total_weight += weight
            credit = self._credits[key] = self._credits.get(key, 0.0) + weight
            if best_key is None or credit > best_credit:
                best_key, best_credit = key, credit
        if best_key is None:
            raise ValueError("there is no weight to choose by")
        self._credits[best_key] = best_credit - total_weight
        return best_key

    def retain(self, keys: Container[K]) -> None:
        """Keeps the credits of the given keys, and drops all other credits."""
        self._credits = {key: credit for key, credit in self._credits.items() if key in keys}


class RouteChooser:
    """Chooses among the routes of one circuit.

    ``choose`` is deterministic; ties go to the route that was chosen longest ago.
    """

    def __init__(self, routes: Iterable[RouteInfo] = ()) -> None:
        self._weights: SmoothWeights[float] = SmoothWeights()
        self._groups: dict[float, list[Target]] = {}
        self._single: Target | None = None
        self.update(routes)

    def update(self, routes: Iterable[RouteInfo]) -> None:
        """Replaces the routes of the circuit. Groups of equal weight that remain keep their credits."""
        groups: dict[float, list[Target]] = {}
        for route in routes:
            if route.traffic_ratio > 0:
                groups.setdefault(route.traffic_ratio, []).append(Target(key_of(route), route))
        self._groups = groups
        self._weights.retain(groups)
        members = next(iter(groups.values()), [])
        self._single = members[0] if len(groups) == 1 and len(members) == 1 else None

    def choose(self, in_flight: Mapping[RouteKey, int], excluded: Container[RouteKey] = frozenset()) -> Target | None:
        """Returns the route of the next request. Returns None if all routes are excluded or have no weight."""
        if self._single is not None:
            return None if self._single.key in excluded else self._single
        eligible_groups: dict[float, list[Target]] = {}
        for ratio, members in self._groups.items():
            eligible_targets = [target for target in members if target.key not in excluded]
            if eligible_targets:
                eligible_groups[ratio] = eligible_targets
        if not eligible_groups:
            return None
        ratio = self._weights.choose(
            {ratio: ratio * len(eligible_targets) for ratio, eligible_targets in eligible_groups.items()}
        )
        chosen_target = min(eligible_groups[ratio], key=lambda target: in_flight.get(target.key, 0))
        members = self._groups[ratio]
        members.remove(chosen_target)
        members.append(chosen_target)
        return chosen_target
