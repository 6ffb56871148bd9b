"""Computes prices of the devices that some requests name: how probably these requests will lack the devices.

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


class _RequestUnits(NamedTuple):
    """Holds the demand of some requests for one slot, as mean and variance.

    Both are for each unit that all typical requests ask of the slot.
    """

    units: float
    variance: float


class _ScarceSet(NamedTuple):
    """Holds the mask of groups of agents that alone can serve some requests, and the demand of these requests."""

    group_mask: int
    flow: _RequestUnits


class DevicePrices:
    """Computes how scarce devices are for device requests, as a price for each group of agents with equal devices."""

    def __init__(self, requests: Sequence[NamedRequest], requested_units: Mapping[str, float]) -> None:
        """Prepares the prices. ``requested_units``: what all typical requests ask of each accelerator slot."""
        units_by_request: dict[tuple[str, tuple[DeviceRequest, ...]], _RequestUnits] = {}
        for device_requests, slots, count in requests:
            for slot, quantity in slots.items():
                if slot not in _HOST_SLOTS and (total_units := requested_units.get(slot)):
                    slot_units = float(quantity)
                    units, variance = units_by_request.get((slot, device_requests), (0.0, 0.0))
                    units_by_request[slot, device_requests] = _RequestUnits(
                        units + count * slot_units / total_units,
                        variance + count * slot_units * slot_units / total_units,
                    )
        request_keys = sorted(
            units_by_request, key=lambda key: (-units_by_request[key].units, key[0], *map(str, key[1]))
        )[:MAX_NAMED]
        self._request_units = [(*request_key, units_by_request[request_key]) for request_key in request_keys]
        self._groups: dict[tuple[bool, ...], int] = {}
        self._free_micro: list[dict[str, int]] = []
        self._sets: dict[str, list[_ScarceSet]] | None = None

    @property
    def is_needed(self) -> bool:
        """Returns True if at least one typical request names devices.

        Otherwise no groups exist, and nothing has to be counted.
        """
        return bool(self._request_units)

    def group_of(self, node_class: NodeClass) -> int:
        """Returns the number of the group of agents with these devices."""
        group_key = tuple(
            slot in node_class.pools
            and any(
                node_class.prepare((ResourceSlot({slot: Decimal(1)}), (), request, False)) is not None
                for request in device_requests
            )
            for slot, device_requests, _ in self._request_units
        )
        if group_key not in self._groups:
            self._groups[group_key] = len(self._free_micro)
            self._free_micro.append({})
            self._sets = None
        return self._groups[group_key]

    def count_free(self, group: int, free_micro: Sequence[tuple[str, int]], sign: int) -> None:
        """Adds (1) or removes (-1) the free amounts of one agent of a group, in millionths of each accelerator slot."""
        free_of_slot = self._free_micro[group]
        for slot, amount_micro in free_micro:
            free_of_slot[slot] = free_of_slot.get(slot, 0) + sign * amount_micro

    def compute_prices(self, units_of_request: Mapping[str, float]) -> list[float]:
        """Returns the price of each group of agents for one request.

        The price is how many units the request takes from requests that need the group's devices.
        """
        if self._sets is None:
            self._sets = self._scarce_sets()
        prices = [0.0] * len(self._free_micro)
        for slot, scarce_sets in self._sets.items():
            requested_units = units_of_request.get(slot)
            if not requested_units:
                continue
            free_units = [free_micro.get(slot, 0) / MICRO for free_micro in self._free_micro]
            total_free = sum(free_units)
            unit_prices = [0.0] * len(free_units)
            for group_mask, flow in scarce_sets:
                groups = [group for group in range(len(free_units)) if group_mask >> group & 1]
                missing_units = flow.units * total_free - sum(free_units[group] for group in groups)
                units_deviation = sqrt(flow.variance * total_free) or 1.0
                price = (1 + erf(missing_units / units_deviation / _SQRT_2)) / 2
                for group in groups:
                    unit_prices[group] = max(unit_prices[group], price)
            prices = [
                price + requested_units * unit_price for price, unit_price in zip(prices, unit_prices, strict=True)
            ]
        return prices

    def _scarce_sets(self) -> dict[str, list[_ScarceSet]]:
        """Returns, for each slot, the sets of groups of agents that alone can serve some device requests.

        A set of all groups is left out.
        """
        scarce_sets: dict[str, list[_ScarceSet]] = {}
        all_mask = (1 << len(self._free_micro)) - 1
        for slot in dict.fromkeys(slot for slot, _, _ in self._request_units):
            mask_of_flow = {
                flow_index: sum(1 << group for group_key, group in self._groups.items() if group_key[flow_index])
                for flow_index, (flow_slot, _, _) in enumerate(self._request_units)
                if flow_slot == slot
            }
            union_masks = {
                reduce(or_, (mask_of_flow[flow_index] for flow_index in joined_indexes))
                for joined_count in range(1, _MAX_JOINED + 1)
                for joined_indexes in combinations(mask_of_flow, joined_count)
            }
            sets_of_slot = []
            for union_mask in sorted(union_masks - {0, all_mask}):
                flows_inside = [
                    self._request_units[flow_index][2]
                    for flow_index, mask in mask_of_flow.items()
                    if mask and not mask & ~union_mask
                ]
                flow = _RequestUnits(
                    sum(flow.units for flow in flows_inside), sum(flow.variance for flow in flows_inside)
                )
                sets_of_slot.append(_ScarceSet(union_mask, flow))
            scarce_sets[slot] = sorted(
                sets_of_slot, key=lambda scarce_set: (-scarce_set.flow.units, scarce_set.group_mask)
            )[:_MAX_SETS]
        return scarce_sets
