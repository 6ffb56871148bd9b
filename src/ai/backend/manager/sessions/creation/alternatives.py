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
    """The device requests of a session. Each of them says an amount of every slot of which one of them says one, but of
    those that neither it nor ``resources`` request."""

    requests: tuple[DeviceRequest, ...] = ()
    texts: tuple[str, ...] = ()

    def kernels_by(self, planned: Sequence[PlannedKernel]) -> list[Sequence[PlannedKernel]]:
        """Returns the planned kernels once for each alternative, or once in all if the alternatives name no amounts."""
        amount_slots = amounts.slots_with_amounts(self.requests)
        if not amount_slots:
            return [planned]
        return [
            [
                replace(kernel, slots=amounts.slots_of_alternative(kernel.slots, request, amount_slots))
                for kernel in planned
            ]
            for request in self.requests
        ]


def check_alternatives(
    request: CreateSession,
    slots: ResourceSlot,
    planned: tuple[PlannedKernel, ...],
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
        asking = [not amount_slots.isdisjoint(kernel.slots.nonzero()) for kernel in planned]
        concerned = [kernel for kernel, asks in zip(planned, asking, strict=True) if asks] or planned
        plain = _plain_amounts(concerned, amount_slots)
        _check_contradictions(request, requests, plain)
        texts = tuple(
            amounts.add_amounts(each, ResourceSlot({s: q for s, q in plain.items() if s not in each.amounts}))
            if plain.keys() - each.amounts.keys()
            else text
            for each, text in zip(requests, texts, strict=True)
        )
        texts = compiler.check(texts, _FIELD)
        requests = tuple(map(compiler.compile, texts))
        _check_image(requests, concerned, amount_slots)
        planned = tuple(
            replace(kernel, slots=_largest(kernel.slots, requests)) if asks or not any(asking) else kernel
            for kernel, asks in zip(planned, asking, strict=True)
        )
        if not any(asking) or not amount_slots.isdisjoint(slots.nonzero()):
            slots = _largest(slots, requests)
    if texts and not any(set(kernel.slots.nonzero()) - set(HOST_PLUGINS) for kernel in planned):
        message = "device requests concern accelerators; request one of their slots as well"
        raise InvalidInput(message, data={_FIELD: "no accelerator is requested"})
    return Alternatives(requests, texts), slots, planned


def _largest(slots: ResourceSlot, requests: Sequence[DeviceRequest]) -> ResourceSlot:
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


def _plain_amounts(concerned: Sequence[PlannedKernel], amount_slots: frozenset[str]) -> dict[str, Decimal]:
    """Returns the amounts, outside the alternatives, that all kernels request of the slots in ``amount_slots``."""
    plain: dict[str, Decimal] = {}
    for name in sorted(amount_slots):
        quantities = {kernel.slots[name] for kernel in concerned}
        if len(quantities) > 1:
            message = f"alternatives have amounts of {name}, of which the roles of the session request different ones"
            raise InvalidInput(message, data={_FIELD: message})
        plain[name] = quantities.pop()
    return {name: quantity for name, quantity in plain.items() if quantity}


def _check_contradictions(
    request: CreateSession, requests: Sequence[DeviceRequest], plain: Mapping[str, Decimal]
) -> None:
    written = {
        name
        for resources in (request.resources, *(role.resources for role in request.roles))
        for name in resources or ()
    }
    for name in sorted(plain.keys() & written):
        if all(name in each.amounts and each.amounts[name] != plain[name] for each in requests):
            message = f"the resources ask for {format_quantity(plain[name])} {name}, which no alternative takes"
            raise InvalidInput(message, data={_FIELD: message, "config.resources": f"{name}: contradicts alternatives"})
    for number, each in enumerate(requests, 1):
        if not each.amounts and not plain:
            names = ", ".join(sorted(amounts.slots_with_amounts(requests)))
            message = f"alternative {number} says no amount, and the resources have no {names}"
            raise InvalidInput(message, data={_FIELD: message})


def _check_image(
    requests: Sequence[DeviceRequest], concerned: Sequence[PlannedKernel], amount_slots: frozenset[str]
) -> None:
    for kernel in concerned:
        for name in amount_slots:
            minimum = kernel.image.min_slots[SlotName(name)]
            for number, each in enumerate(requests, 1):
                if each.amounts[name] < minimum:
                    message = (
                        f"alternative {number}: the image {kernel.image.name} needs at least "
                        f"{format_quantity(minimum)} of {name}"
                    )
                    raise InvalidInput(message, data={_FIELD: message})
