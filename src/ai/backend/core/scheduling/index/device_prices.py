"""Prices devices that some requests name, by the probability that these requests will lack the devices.

A request that any device serves should leave scarce models to those that name them, and take plentiful ones.
Agents are grouped by which typical device requests they can serve. For a set of groups, all requests that only these
can serve are the demand that nothing else can take; what will come of it, while everything that is free is being
requested, is about Normal. The price of a unit in a group is the largest probability that such a demand exceeds what is
free in a set with that group. Source: Hall's condition, decision 0490.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import reduce
from itertools import combinations
from math import erf, sqrt
from operator import or_
from typing import NamedTuple

from ai.backend.common.slots import ResourceSlot
from ai.backend.core.allocation.requests.compiled import DeviceRequest
from ai.backend.core.allocation.slot_pool import MICRO
from ai.backend.core.scheduling.index.agent_state import NodeClass

_HOST_SLOTS = ("cpu", "mem")
MAX_NAMED = 12
"""The most typical device requests that are priced. The requests with the largest demand are priced first."""
_MAX_JOINED = 3
_MAX_SETS = 64
_SQRT_2 = sqrt(2)


class NamedRequest(NamedTuple):
    """Describes a typical request that names devices, by its alternatives, its slots and its frequency."""

    device_requests: tuple[DeviceRequest, ...]
    slots: ResourceSlot
    frequency: float


class _Flow(NamedTuple):
    """Holds the demand of some requests for one slot: mean and variance for each unit that all typical requests ask of
    the slot."""

    units: float
    variance: float


class _ScarceSet(NamedTuple):
    """Holds groups of agents that alone can serve some requests. ``flow``: of these; ``group_mask``: the groups."""

    group_mask: int
    flow: _Flow


class DevicePrices:
    """Counts the free amounts in each group of agents, and computes the prices of the groups."""

    def __init__(self, requests: Sequence[NamedRequest], requested_units: Mapping[str, float]) -> None:
        """Prepares the prices. ``requested_units``: what all typical requests ask of each accelerator slot."""
        flows: dict[tuple[str, tuple[DeviceRequest, ...]], _Flow] = {}
        for device_requests, slots, count in requests:
            for slot, quantity in slots.items():
                if slot not in _HOST_SLOTS and (all_units := requested_units.get(slot)):
                    amount = float(quantity)
                    units, variance = flows.get((slot, device_requests), (0.0, 0.0))
                    flows[slot, device_requests] = _Flow(
                        units + count * amount / all_units, variance + count * amount * amount / all_units
                    )
        keys = sorted(flows, key=lambda key: (-flows[key].units, key[0], *map(str, key[1])))[:MAX_NAMED]
        self._flows = [(*key, flows[key]) for key in keys]
        self._groups: dict[tuple[bool, ...], int] = {}
        self._free_micro: list[dict[str, int]] = []
        self._sets: dict[str, list[_ScarceSet]] | None = None

    @property
    def is_needed(self) -> bool:
        """Returns False if no typical request names devices. Then no groups exist, and nothing has to be counted."""
        return bool(self._flows)

    def group_of(self, node_class: NodeClass) -> int:
        """Returns the number of the group of agents with these devices."""
        key = tuple(
            slot in node_class.pools
            and any(
                node_class.prepare((ResourceSlot({slot: Decimal(1)}), (), request, False)) is not None
                for request in device_requests
            )
            for slot, device_requests, _ in self._flows
        )
        if key not in self._groups:
            self._groups[key] = len(self._free_micro)
            self._free_micro.append({})
            self._sets = None
        return self._groups[key]

    def count(self, group: int, free_micro: Sequence[tuple[str, int]], sign: int) -> None:
        """Adds (1) or removes (-1) the free amounts of one agent of a group, in millionths of each accelerator slot."""
        free = self._free_micro[group]
        for slot, amount_micro in free_micro:
            free[slot] = free.get(slot, 0) + sign * amount_micro

    def prices(self, requested: Mapping[str, float]) -> list[float]:
        """Returns, for each group, how many units a request takes from requests that need the group's devices."""
        if self._sets is None:
            self._sets = self._scarce_sets()
        prices = [0.0] * len(self._free_micro)
        for slot, scarce_sets in self._sets.items():
            amount = requested.get(slot)
            if not amount:
                continue
            free = [free_micro.get(slot, 0) / MICRO for free_micro in self._free_micro]
            all_free = sum(free)
            unit_prices = [0.0] * len(free)
            for group_mask, flow in scarce_sets:
                members = [group for group in range(len(free)) if group_mask >> group & 1]
                lack = flow.units * all_free - sum(free[group] for group in members)
                deviation = sqrt(flow.variance * all_free) or 1.0
                price = (1 + erf(lack / deviation / _SQRT_2)) / 2
                for group in members:
                    unit_prices[group] = max(unit_prices[group], price)
            prices = [price + amount * unit_price for price, unit_price in zip(prices, unit_prices, strict=True)]
        return prices

    def _scarce_sets(self) -> dict[str, list[_ScarceSet]]:
        """Returns, for each slot, the unions of groups that alone serve some device requests.

        A union of all groups is left out.
        """
        sets: dict[str, list[_ScarceSet]] = {}
        all_mask = (1 << len(self._free_micro)) - 1
        for slot in dict.fromkeys(slot for slot, _, _ in self._flows):
            masks = {
                place: sum(1 << group for key, group in self._groups.items() if key[place])
                for place, (own_slot, _, _) in enumerate(self._flows)
                if own_slot == slot
            }
            unions = {
                reduce(or_, (masks[place] for place in joined))
                for count in range(1, _MAX_JOINED + 1)
                for joined in combinations(masks, count)
            }
            scarce = []
            for union in sorted(unions - {0, all_mask}):
                inside = [self._flows[place][2] for place, mask in masks.items() if mask and not mask & ~union]
                flow = _Flow(sum(flow.units for flow in inside), sum(flow.variance for flow in inside))
                scarce.append(_ScarceSet(union, flow))
            sets[slot] = sorted(scarce, key=lambda scarce_set: (-scarce_set.flow.units, scarce_set.group_mask))[
                :_MAX_SETS
            ]
        return sets
