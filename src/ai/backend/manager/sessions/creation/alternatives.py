"""Checks the device requests of a new session, and computes the slots that its kernels take by each request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

import msgspec

from ai.backend.common.errors import InvalidInput, InvalidQuantity, UnsupportedResource
from ai.backend.common.ids import SlotName
from ai.backend.common.slots import ResourceSlot, format_quantity, parse_quantity
from ai.backend.common.states import SlotType
from ai.backend.common.structs import replace
from ai.backend.core.allocation.requests import amounts
from ai.backend.core.allocation.requests.compiled import DeviceRequest, RequestCompiler
from ai.backend.core.allocation.variants import HOST_PLUGINS
from ai.backend.manager.agents.slots import SlotTypes
from ai.backend.manager.sessions.creation.feasibility import PlannedKernel
from ai.backend.manager.sessions.model import CreateSession

_FIELD = "config.device_requests"


class Alternatives(msgspec.Struct, frozen=True):
    """Holds the distinct device requests of a session, compiled and as texts.

    If one request names an amount of a slot, each other request does so too, except for slots that neither that request
    nor ``resources`` of the session requests.
    """

    requests: tuple[DeviceRequest, ...] = ()
    texts: tuple[str, ...] = ()

    def kernels_of_alternatives(self, planned_kernels: Sequence[PlannedKernel]) -> list[Sequence[PlannedKernel]]:
        """Returns, for each device request, the planned kernels with the slots that they take by this request.

        If no request names amounts, returns the planned kernels once, unchanged.
        """
        amount_slots = amounts.slots_with_amounts(self.requests)
        if not amount_slots:
            return [planned_kernels]
        return [
            [
                replace(kernel, slots=amounts.slots_of_alternative(kernel.slots, request, amount_slots))
                for kernel in planned_kernels
            ]
            for request in self.requests
        ]


def check_alternatives(
    request: CreateSession,
    slots: ResourceSlot,
    planned_kernels: tuple[PlannedKernel, ...],
    compiler: RequestCompiler,
    slot_types: SlotTypes,
) -> tuple[Alternatives, ResourceSlot, tuple[PlannedKernel, ...]]:
    """Returns a request's distinct alternatives, and its slots and kernels with the largest amounts of the
    alternatives.

    Raises InvalidInput for malformed ones, for amounts that contradict the resources or the image, and if no kernel
    requests an accelerator that they could concern; UnsupportedResource for a slot that no agent has ever offered.
    """
    texts = compiler.check(request.device_requests, _FIELD)
    requests = tuple(map(compiler.compile, texts))
    amount_slots = amounts.slots_with_amounts(requests)
    if amount_slots:
        _check_slots(requests, slot_types)
        amount_flags = [not amount_slots.isdisjoint(kernel.slots.nonzero()) for kernel in planned_kernels]
        concerned_kernels = [
            kernel for kernel, has_amount_slot in zip(planned_kernels, amount_flags, strict=True) if has_amount_slot
        ] or planned_kernels
        plain_amounts = _plain_amounts(concerned_kernels, amount_slots)
        _check_contradictions(request, requests, plain_amounts)
        texts = tuple(
            amounts.add_amounts(
                alternative,
                ResourceSlot(
                    {
                        slot_name: quantity
                        for slot_name, quantity in plain_amounts.items()
                        if slot_name not in alternative.amounts
                    }
                ),
            )
            if plain_amounts.keys() - alternative.amounts.keys()
            else text
            for alternative, text in zip(requests, texts, strict=True)
        )
        texts = compiler.check(texts, _FIELD)
        requests = tuple(map(compiler.compile, texts))
        _check_image(requests, concerned_kernels, amount_slots)
        planned_kernels = tuple(
            replace(kernel, slots=_with_largest_amounts(kernel.slots, requests))
            if has_amount_slot or not any(amount_flags)
            else kernel
            for kernel, has_amount_slot in zip(planned_kernels, amount_flags, strict=True)
        )
        if not any(amount_flags) or not amount_slots.isdisjoint(slots.nonzero()):
            slots = _with_largest_amounts(slots, requests)
    if texts and not any(set(kernel.slots.nonzero()) - set(HOST_PLUGINS) for kernel in planned_kernels):
        message = "device requests concern accelerators; request one of their slots as well"
        raise InvalidInput(message, data={_FIELD: "no accelerator is requested"})
    return Alternatives(requests, texts), slots, planned_kernels


def _with_largest_amounts(slots: ResourceSlot, requests: Sequence[DeviceRequest]) -> ResourceSlot:
    """Returns slots that have, for each slot name, the largest amount that a device request or ``slots`` names."""
    return amounts.largest_slots(slots.nonzero() + requests[0].amounts, requests)


def _check_slots(requests: Sequence[DeviceRequest], slot_types: SlotTypes) -> None:
    for number, request in enumerate(requests, 1):
        for name, quantity in request.amounts.items():
            if name not in slot_types:
                available = ", ".join(sorted(slot_types)) or "none"
                raise UnsupportedResource(
                    f"No agent has ever offered the resource slot {name!r}; known slots are {available}.",
                    data={_FIELD: f"alternative {number}: unknown slot: {name}", "available": sorted(slot_types)},
                )
            try:
                parse_quantity(quantity, is_bytes=slot_types[name].slot_type is SlotType.BYTES)
            except InvalidQuantity as e:
                message = f"alternative {number}: {name}: {e.message}"
                raise InvalidQuantity(message, data={_FIELD: message}) from None


def _plain_amounts(kernels: Sequence[PlannedKernel], amount_slots: frozenset[str]) -> dict[str, Decimal]:
    """Returns the amounts of ``amount_slots`` that the kernels request by their slots, not by device requests.

    Raises InvalidInput if the kernels request different amounts of one slot.
    """
    plain_amounts: dict[str, Decimal] = {}
    for name in sorted(amount_slots):
        quantities = {kernel.slots[name] for kernel in kernels}
        if len(quantities) > 1:
            message = f"alternatives have amounts of {name}, of which the roles of the session request different ones"
            raise InvalidInput(message, data={_FIELD: message})
        plain_amounts[name] = quantities.pop()
    return {name: quantity for name, quantity in plain_amounts.items() if quantity}


def _check_contradictions(
    request: CreateSession, requests: Sequence[DeviceRequest], plain_amounts: Mapping[str, Decimal]
) -> None:
    requested_names = {
        name
        for resources in (request.resources, *(role.resources for role in request.roles))
        for name in resources or ()
    }
    for name in sorted(plain_amounts.keys() & requested_names):
        if all(
            name in alternative.amounts and alternative.amounts[name] != plain_amounts[name] for alternative in requests
        ):
            message = f"the resources ask for {format_quantity(plain_amounts[name])} {name}, which no alternative takes"
            raise InvalidInput(message, data={_FIELD: message, "config.resources": f"{name}: contradicts alternatives"})
    for alternative_number, alternative in enumerate(requests, 1):
        if not alternative.amounts and not plain_amounts:
            slot_names = ", ".join(sorted(amounts.slots_with_amounts(requests)))
            message = f"alternative {alternative_number} says no amount, and the resources have no {slot_names}"
            raise InvalidInput(message, data={_FIELD: message})


def _check_image(
    requests: Sequence[DeviceRequest], kernels: Sequence[PlannedKernel], amount_slots: frozenset[str]
) -> None:
    for kernel in kernels:
        for name in amount_slots:
            minimum_amount = kernel.image.min_slots[SlotName(name)]
            for alternative_number, alternative in enumerate(requests, 1):
                if alternative.amounts[name] < minimum_amount:
                    message = (
                        f"alternative {alternative_number}: the image {kernel.image.name} needs at least "
                        f"{format_quantity(minimum_amount)} of {name}"
                    )
                    raise InvalidInput(message, data={_FIELD: message})
