"""Computes how many accelerator slots a kernel takes by each alternative of its session's device requests.

The slots that any alternative of a session names are those that differ. An alternative takes what it says of them, and
nothing of those that it does not name; the manager adds what the session requests besides to its text. Kernels that
request none of these slots are the same by every alternative. While a session waits, its kernels request the largest
amount of each slot; once it is placed, those of the alternative that was chosen. Source: decision 0570.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal

from ai.backend.common.slots import ResourceSlot, format_quantity
from ai.backend.core.allocation.requests.compiled import DeviceRequest
from ai.backend.core.allocation.requests.terms import Amount, AnyOf


def slots_with_amounts(requests: Iterable[DeviceRequest]) -> frozenset[str]:
    """Returns the slots for which at least one alternative states an amount."""
    return frozenset(slot for request in requests for slot in request.amounts)


def slots_of_alternative(slots: ResourceSlot, request: DeviceRequest, amount_slots: frozenset[str]) -> ResourceSlot:
    """Returns the slots that a kernel takes if the given alternative is chosen.

    ``amount_slots``: see :func:`slots_with_amounts`.
    """
    return _replace_slots(slots, request.amounts, amount_slots)


def largest_slots(slots: ResourceSlot, requests: Sequence[DeviceRequest]) -> ResourceSlot:
    """Returns the slots of a kernel, with the largest amount that any alternative states for each slot."""
    amounts: dict[str, Decimal] = {}
    for request in requests:
        for slot, quantity in request.amounts.items():
            amounts[slot] = max(quantity, amounts.get(slot, quantity))
    return _replace_slots(slots, ResourceSlot(amounts), frozenset(amounts)) if amounts else slots


def alternatives_with(slots: ResourceSlot, requests: Sequence[DeviceRequest]) -> list[DeviceRequest]:
    """Returns the alternatives by which a kernel takes exactly the given slots."""
    amount_slots = slots_with_amounts(requests)
    return [
        request
        for request in requests
        if not amount_slots or slots_of_alternative(slots, request, amount_slots) == slots.nonzero()
    ]


def add_amounts(request: DeviceRequest, amounts: ResourceSlot) -> str:
    """Returns the text of an alternative, extended by amounts of other slots."""
    amount_texts = [
        str(Amount(slot, quantity, format_quantity(quantity))) for slot, quantity in sorted(amounts.items())
    ]
    is_disjunction = isinstance(request.term, AnyOf) and request.text == str(request.term)
    return " && ".join((f"({request.text})" if is_disjunction and amount_texts else request.text, *amount_texts))


def replace_amounts(request: DeviceRequest, slots: ResourceSlot) -> str:
    """Returns the text of an alternative, with the amounts of its slots replaced by the amounts in ``slots``."""
    is_disjunction = isinstance(request.term, AnyOf) and request.wording == str(request.term)
    wording = f"({request.wording})" if is_disjunction else request.wording
    amount_texts = [str(Amount(slot, slots[slot], format_quantity(slots[slot]))) for slot in sorted(request.amounts)]
    return " && ".join(filter(None, (wording, *amount_texts)))


def _replace_slots(slots: ResourceSlot, amounts: ResourceSlot, amount_slots: frozenset[str]) -> ResourceSlot:
    requested_slots = slots.nonzero()
    if amount_slots.isdisjoint(requested_slots):
        return requested_slots
    return ResourceSlot(
        {**{slot: quantity for slot, quantity in requested_slots.items() if slot not in amount_slots}, **amounts}
    )
