"""Measures how much of an agent's free accelerators is unusable for typical requests.

A fragmentation gradient, in the sense of Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent" (ATC'23): that agent is best whose fragmentation grows least. What is measured differs
from the paper; docs/decisions/0027-fragmentation-measure.md says how and why. Of one agent and one accelerator slot
with ``G`` units free, of which ``n`` devices are whole:

* stranded: the units that will find no cores or memory. Requests of ``G`` units together need ``G * mean`` cores, with
  a deviation of ``deviation * sqrt(G)``; what they need beyond the free cores, in expectation, is what strands.
* broken: requests of ``k`` whole devices can use ``n`` devices if ``n >= k``, else nothing of the agent; summed over
  ``k`` with how often it is requested.

A part of a device is best put where it leaves the least of that device. gradient.py chooses by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from math import erf, exp, pi, sqrt

from ai.backend.common.slots import ResourceSlot

COMPANIONS = ("cpu", "mem")


@dataclass(slots=True)
class TypicalRequest:
    """Describes how much of other slots usually comes with each unit of one accelerator slot.

    Attributes:
        need: companion slot -> (mean, deviation) of what one unit comes with.
        whole: number of devices -> how often so many whole ones are requested, of all requests.
        amounts: requested amount -> how many such requests come while one unit is requested in all.
        units: what all requests ask for together.
    """

    need: dict[str, tuple[float, float]] = field(default_factory=dict)
    whole: dict[int, float] = field(default_factory=dict)
    amounts: dict[Decimal, float] = field(default_factory=dict)
    units: float = 0.0


def typical_requests(requests: Iterable[tuple[ResourceSlot, float]]) -> dict[str, TypicalRequest]:
    """Returns the typical request of each accelerator slot. ``requests``: (slots, how often they occur)."""
    requests_with_counts = [(slots.nonzero(), count) for slots, count in requests]
    all_count = sum(count for _, count in requests_with_counts)
    typical_of_slot: dict[str, TypicalRequest] = {}
    for slot in sorted({slot for slots, _ in requests_with_counts for slot in slots} - set(COMPANIONS)):
        slot_requests = [
            (slots, float(slots[slot]), count)
            for slots, count in requests_with_counts
            if slots[slot].is_finite() and slots[slot]
        ]
        units = sum(amount * count for _, amount, count in slot_requests)
        typical_request = typical_of_slot[slot] = TypicalRequest(units=units)
        for companion in COMPANIONS if units else ():
            mean = sum(float(slots[companion]) * count for slots, _, count in slot_requests) / units
            variance = (
                sum((float(slots[companion]) - mean * amount) ** 2 * count for slots, amount, count in slot_requests)
                / units
            )
            if mean:
                typical_request.need[companion] = mean, sqrt(variance)
        for slots, amount, count in slot_requests:
            exact_amount = slots[slot]
            typical_request.amounts[exact_amount] = typical_request.amounts.get(exact_amount, 0.0) + count / units
            if amount >= 1 and amount == int(amount):
                typical_request.whole[int(amount)] = typical_request.whole.get(int(amount), 0.0) + count / all_count
    return typical_of_slot


def _excess(units: float, free_amount: float, mean: float, deviation: float) -> float:
    """Returns the expected number of free units for which too little of a companion slot is left.

    It is E[max(0, N(units * mean, ...) - have)] / mean.
    """
    units_deviation, expected_lack = deviation * sqrt(units), units * mean - free_amount
    if units_deviation <= 0:
        return max(0.0, expected_lack) / mean
    z_score = expected_lack / units_deviation
    if z_score < -6:
        return 0.0
    density = exp(-z_score * z_score / 2) / sqrt(2 * pi)
    return min(units, (expected_lack * (1 + erf(z_score / sqrt(2))) / 2 + units_deviation * density) / mean)


def lost_units(
    typical_request: TypicalRequest, units: float, whole_count: int, free_of_companion: Mapping[str, float]
) -> float:
    """Returns how many free units of an accelerator cannot be used by typical requests."""
    if units <= 0:
        return 0.0
    stranded_units = max(
        (
            _excess(units, free_of_companion[companion], *mean_and_deviation)
            for companion, mean_and_deviation in typical_request.need.items()
        ),
        default=0.0,
    )
    return stranded_units + sum(
        probability * (units - whole_count if whole_count >= needed_count else units)
        for needed_count, probability in typical_request.whole.items()
    )
