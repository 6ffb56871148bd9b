"""Averages the recent usage of a scope. Past usage counts half as much after each half-life."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

from ai.backend.common.slots import ResourceSlot

_PRECISION = Decimal("0.000001")


def scope_prefixes(scope: tuple[str, ...]) -> list[str]:
    """Returns the scope and its parents: ``domain``, ``domain/project``, ``domain/project/user``."""
    return ["/".join(scope[: depth + 1]) for depth in range(len(scope))]


def occupied_by_scope(holdings: Iterable[tuple[tuple[str, ...], ResourceSlot]]) -> dict[str, ResourceSlot]:
    """Returns the total resource slots that each scope holds, including the slots of its narrower scopes."""
    totals: dict[str, ResourceSlot] = {}
    for scope, slots in holdings:
        for name in scope_prefixes(scope):
            totals[name] = totals.get(name, ResourceSlot()) + slots
    return totals


def decay_averages(
    earlier_averages: Mapping[str, ResourceSlot],
    present_usage: Mapping[str, ResourceSlot],
    *,
    elapsed_s: float,
    half_life_s: float,
) -> dict[str, ResourceSlot]:
    """Returns the averages after ``elapsed_s`` more seconds, in which each scope kept its present usage."""
    old_weight = Decimal(2.0 ** (-max(0.0, elapsed_s) / half_life_s)) if half_life_s > 0 else Decimal(0)
    averages = {}
    for scope in earlier_averages.keys() | present_usage.keys():
        old_average, present_slots = (
            earlier_averages.get(scope, ResourceSlot()),
            present_usage.get(scope, ResourceSlot()),
        )
        mixed_quantities = {
            slot: (old_average[slot] * old_weight + present_slots[slot] * (1 - old_weight)).quantize(_PRECISION)
            for slot in old_average.keys() | present_slots.keys()
        }
        if average_slots := ResourceSlot(mixed_quantities).nonzero():
            averages[scope] = average_slots
    return averages
