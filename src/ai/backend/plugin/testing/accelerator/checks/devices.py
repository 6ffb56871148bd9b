"""Devices, their slots, links and properties."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from ai.backend.common.devices import DeviceLink, SlotDisplay
from ai.backend.common.ids import DeviceId
from ai.backend.plugin.accelerator import responses, slot_totals
from ai.backend.plugin.accelerator.shapes import InvalidResponse
from ai.backend.plugin.testing.accelerator.checks.registry import Checks, expect
from ai.backend.plugin.testing.accelerator.checks.results import CheckFailed
from ai.backend.plugin.testing.accelerator.checks.subject import Subject

CHECKS = Checks()
_DEVICES = "BEP-1000; accelerator v2, The contract: devices"
_SLOTS = "spec 01, slots; accelerator v2, Allocation"


def _nobody(_: str) -> None:
    return None


@CHECKS.add("spec 03-06, formats", is_basic=True)
async def slots_can_be_shown(subject: Subject) -> None:
    """Every slot has a name and a unit for people."""
    try:
        slots = responses.displays(await subject.call("configurable_slots"), foreign=_nobody)
    except InvalidResponse as e:
        raise CheckFailed(f"configurable_slots: {e}") from None
    for slot in slots:
        expect(slot.human_readable_name, f"{slot.slot_name} has no human_readable_name")
        expect(slot.display_unit, f"{slot.slot_name} has no display_unit")


@CHECKS.add(_DEVICES, is_basic=True)
async def devices_are_well_formed(subject: Subject) -> None:
    """The agent takes every device as it is listed."""
    displays: tuple[SlotDisplay, ...] = await subject.call("configurable_slots")
    try:
        devices = responses.devices(
            await subject.call("list_devices"), key=subject.plugin.key, displays=displays, foreign=_nobody
        )
    except InvalidResponse as e:
        raise CheckFailed(f"list_devices: {e}") from None
    for device in devices:
        expect(device.hw_location, f"{device.device_id} has no hw_location")
        expect(device.slots, f"{device.device_id} offers no slot")


@CHECKS.add(_DEVICES, is_basic=True)
async def device_ids_are_unique_and_survive_a_restart(subject: Subject) -> None:
    """The next process lists the same devices under the same ids."""
    ids = [d.device_id for d in await subject.devices()]
    async with subject.remade() as again:
        after = [d.device_id for d in await again.devices()]
    expect(after == ids, f"after a restart there are {after} instead of {ids}")


@CHECKS.add(_SLOTS, is_basic=True)
async def slots_are_well_formed(subject: Subject) -> None:
    """Slot names begin with the plugin's key, and quantities are whole quanta."""
    for device in await subject.devices():
        for slot in device.slots:
            if subject.plugin.key_is_slot_prefix:
                expect(
                    slot.slot_name.split(".")[0] == subject.plugin.key,
                    f"{slot.slot_name} does not begin with {subject.plugin.key}",
                )
            expect(
                slot.quantum <= slot.amount or not slot.amount,
                f"{device.device_id}: {slot.slot_name}: the quantum {slot.quantum} is more than the device has",
            )


@CHECKS.add(_SLOTS, is_basic=True)
async def the_totals_are_those_of_the_devices(subject: Subject) -> None:
    """``available_slots`` is the sum over healthy devices."""
    totals: dict[Any, Decimal] = await subject.call("available_slots")
    summed = slot_totals(await subject.devices())
    for name in sorted({*totals, *summed}):
        expect(
            totals.get(name, 0) == summed.get(name, 0),
            f"available_slots has {totals.get(name, 0)} {name}; the healthy devices have {summed.get(name, 0)}",
        )


@CHECKS.add(_DEVICES, is_basic=True)
async def listing_is_repeatable(subject: Subject) -> None:
    """Asked again, nothing has changed but what a device's health may do."""
    first = {d.device_id: d.slots for d in await subject.devices()}
    for _ in range(2):
        again = {d.device_id: d.slots for d in await subject.devices()}
        expect(again == first, f"list_devices changes from call to call: {_difference(first, again)}")
    for method in ("configurable_slots", "variant_namespaces"):
        expect(await subject.call(method) == await subject.call(method), f"{method} changes from call to call")


def _difference(one: dict[DeviceId, Any], other: dict[DeviceId, Any]) -> str:
    changed = sorted(i for i in {*one, *other} if one.get(i) != other.get(i))
    return ", ".join(changed[:5])


@CHECKS.add(_DEVICES)
async def links_are_symmetric(subject: Subject) -> None:
    """Links between two devices are the same in both directions."""
    links: dict[tuple[DeviceId, DeviceId], DeviceLink] = {}
    for device in await subject.devices():
        for link in device.links:
            pair = (device.device_id, link.peer)
            expect(pair not in links, f"{pair[0]} has two links to {pair[1]}")
            links[pair] = link
    for (one, other), link in links.items():
        back = links.get((other, one))
        expect(back is not None, f"{one} is linked to {other}, and {other} not to {one}")
        expect(
            back is not None and (back.kind, back.bandwidth_gib_s) == (link.kind, link.bandwidth_gib_s),
            f"the link of {one} to {other} differs from the one back",
        )


@CHECKS.add("BEP-1000, variant properties")
async def variant_properties_are_declared(subject: Subject) -> None:
    """Every property is of a namespace that the plugin describes, and of a kind that can be required."""
    try:
        spaces = responses.namespaces(await subject.call("variant_namespaces"))
    except InvalidResponse as e:
        raise CheckFailed(f"variant_namespaces: {e}") from None
    names = [space.namespace for space in spaces]
    expect(len(set(names)) == len(names), "a namespace is described twice")
    for space in spaces:
        features = [feature.name for feature in space.features]
        expect(len(set(features)) == len(features), f"{space.namespace} describes a feature twice")
    single = {(s.namespace, f.name) for s in spaces for f in s.features if not f.multi_value}
    for device in await subject.devices():
        seen: set[tuple[str, str]] = set()
        for stated in device.variant_properties:
            where = f"{device.device_id}: {stated}"
            parts = (stated.namespace, stated.feature, stated.value)
            expect(all(p and p == p.strip() for p in parts), f"{where} has an empty part, or blanks around one")
            expect("::" not in stated.namespace + stated.feature, f"{where} cannot be read back")
            expect(stated.namespace in names, f"{where} is of a namespace that variant_namespaces does not name")
            is_second = parts[:2] in seen and parts[:2] in single
            expect(not is_second, f"{where} is a second value of a feature that has one")
            seen.add(parts[:2])
