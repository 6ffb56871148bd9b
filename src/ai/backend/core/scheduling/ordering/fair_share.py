"""Averages the recent usage of a scope; past usage counts half after each half-life."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

from ai.backend.common.slots import ResourceSlot

_DIGITS = Decimal("0.000001")


def prefixes(scope: tuple[str, ...]) -> list[str]:
    """Returns the scope and its parents: ``domain``, ``domain/project``, ``domain/project/user``."""
    return ["/".join(scope[: i + 1]) for i in range(len(scope))]


def occupied(holdings: Iterable[tuple[tuple[str, ...], ResourceSlot]]) -> dict[str, ResourceSlot]:
    """Sums what each scope holds, including its narrower scopes."""
    totals: dict[str, ResourceSlot] = {}
    for scope, slots in holdings:
        for name in prefixes(scope):
            totals[name] = totals.get(name, ResourceSlot()) + slots
    return totals


def decayed(
    before: Mapping[str, ResourceSlot],
    now: Mapping[str, ResourceSlot],
    *,
    elapsed_s: float,
    half_life_s: float,
) -> dict[str, ResourceSlot]:
    """Returns the average after ``elapsed_s`` more seconds in which the scopes held what they hold now."""
    weight = Decimal(2.0 ** (-max(0.0, elapsed_s) / half_life_s)) if half_life_s > 0 else Decimal(0)
    averages = {}
    for scope in before.keys() | now.keys():
        old, new = before.get(scope, ResourceSlot()), now.get(scope, ResourceSlot())
        mixed = {
            slot: (old[slot] * weight + new[slot] * (1 - weight)).quantize(_DIGITS) for slot in old.keys() | new.keys()
        }
        if slots := ResourceSlot(mixed).nonzero():
            averages[scope] = slots
    return averages
