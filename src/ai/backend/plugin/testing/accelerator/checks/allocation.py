"""Checks alloc maps, both the stock maps and a plugin's own map."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from ai.backend.common.devices import ComputeDevice, DeviceAllocation, DeviceHealth
from ai.backend.common.errors import (
    BackendError,
    InsufficientResource,
    InvalidQuantity,
    ResourceError,
    UnsupportedResource,
)
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.plugin.accelerator import AbstractAllocMap, build_alloc_map, responses
from ai.backend.plugin.accelerator.shapes import InvalidResponse
from ai.backend.plugin.testing.accelerator.checks.registry import (
    CheckFailed,
    Checks,
    NotApplicable,
    expect,
    format_value,
)
from ai.backend.plugin.testing.accelerator.checks.subject import Subject

CHECKS = Checks()
_ALLOCATION_SOURCE = "accelerator v2, Allocation; AbstractAllocMap"
_SEED = 30
_RANDOM_STEPS = 120
_UNKNOWN_SLOT = SlotName("no-such.slot")


async def _new_alloc_map(subject: Subject) -> AbstractAllocMap:
    alloc_map: AbstractAllocMap = await subject.call("create_alloc_map")
    return alloc_map


def _new_map_spec(subject: Subject, devices: Iterable[ComputeDevice]) -> Any:
    try:
        return responses.validate_alloc_map(subject.plugin.alloc_map_spec(), tuple(devices))
    except InvalidResponse as e:
        raise CheckFailed(f"alloc_map_spec: {e}") from None


@CHECKS.add(_ALLOCATION_SOURCE, is_basic=True)
async def the_alloc_map_covers_the_slots(subject: Subject) -> None:
    """A fresh alloc map has every slot that the plugin offers, all of it free."""
    _new_map_spec(subject, await subject.devices())
    alloc_map = await _new_alloc_map(subject)
    expect(isinstance(alloc_map, AbstractAllocMap), f"create_alloc_map returned {format_value(alloc_map)}")
    offered = {slot: amount for slot, amount in (await subject.call("available_slots")).items() if amount}
    totals = {slot: amount for slot, amount in alloc_map.totals.items() if amount}
    expect(totals == offered, f"the map has {format_value(totals)}, offered are {format_value(offered)}")
    free = alloc_map.available()
    expect(free == alloc_map.totals, f"of a fresh map {format_value(free)} is free")


@CHECKS.add("decision 0022")
async def the_manager_map_and_the_agent_map_agree(subject: Subject) -> None:
    """The alloc map of the manager and that of the agent give the same devices for the same requests."""
    devices = await subject.devices()
    spec = _new_map_spec(subject, devices)
    if spec is None:
        raise NotApplicable("the plugin's alloc map is its own")
    quantity_by_slot = await subject.smallest_amounts()
    for request in [{slot: quantity} for slot, quantity in quantity_by_slot.items()]:
        stock_map, own_map = build_alloc_map(spec, devices), await _new_alloc_map(subject)
        for _ in range(3):
            planned_allocation, own_allocation = _allocation_of(stock_map, request), _allocation_of(own_map, request)
            expect(
                planned_allocation == own_allocation,
                f"for {format_value(request)} the manager plans {planned_allocation},"
                f" the plugin's map gives {own_allocation}",
            )


def _allocation_of(alloc_map: AbstractAllocMap, request: Mapping[SlotName, Decimal]) -> object:
    try:
        return alloc_map.allocate(request)
    except InsufficientResource:
        return "nothing"


@CHECKS.add(_ALLOCATION_SOURCE)
async def allocate_free_and_apply_keep_the_books(subject: Subject) -> None:
    """An allocated amount is missing from its slot, and a freed one is available again; other slots do not change."""
    alloc_map = await _new_alloc_map(subject)
    for slot, quantity in (await subject.smallest_amounts()).items():
        free_before = dict(alloc_map.available())
        allocations: list[DeviceAllocation] = []
        try:
            while len(allocations) < 50:
                allocations.append(alloc_map.allocate({slot: quantity}))
        except InsufficientResource as e:
            expect(
                e.data.get("slot") == slot, f"InsufficientResource for {slot} names {format_value(e.data.get('slot'))}"
            )
        expect(allocations, f"{slot} is offered, and {quantity} of it cannot be had")
        for allocation in allocations:
            expect(allocation.total(slot) == quantity, f"{allocation.total(slot)} {slot} where {quantity} were asked")
        if len(allocations) > 1:
            free_now, expected_free = alloc_map.available()[slot], free_before[slot] - quantity * len(allocations)
            expect(free_now == expected_free, f"{free_now} {slot} is free after {len(allocations)} requests")
        alloc_map.free(allocations[-1])
        alloc_map.apply(allocations[-1])
        for allocation in allocations:
            alloc_map.free(allocation)
        expect(alloc_map.available() == free_before, f"{slot}: after everything was freed, not everything is free")


@CHECKS.add(_ALLOCATION_SOURCE)
async def more_than_everything_is_refused_and_changes_nothing(subject: Subject) -> None:
    """A request beyond the capacity is refused by an error of the platform and does not change the map."""
    alloc_map = await _new_alloc_map(subject)
    available_before = dict(alloc_map.available())
    for slot, total_amount in (await subject.call("available_slots")).items():
        for quantity in (total_amount + 1, Decimal(-1), Decimal("Infinity"), Decimal("NaN")):
            _require_refusal(alloc_map, {slot: quantity}, BackendError)
    _require_refusal(alloc_map, {_UNKNOWN_SLOT: Decimal(1)}, UnsupportedResource)
    expect(alloc_map.available() == available_before, "a refused request has taken something")
    empty_request = alloc_map.allocate({_UNKNOWN_SLOT: Decimal(0)})
    expect(not empty_request.slots, "zero of an unknown slot is not nothing")


def _require_refusal(alloc_map: AbstractAllocMap, request: dict[SlotName, Decimal], error: type[BackendError]) -> None:
    try:
        allocation = alloc_map.allocate(request)
    except error:
        return
    except Exception as e:
        raise CheckFailed(
            f"for {format_value(request)} the map raises {type(e).__name__} instead of {error.__name__}"
        ) from e
    raise CheckFailed(f"for {format_value(request)} the map gives {format_value(allocation)}")


@CHECKS.add(_ALLOCATION_SOURCE)
async def a_wrong_allocation_is_refused(subject: Subject) -> None:
    """Allocations of unknown devices can be neither applied to an alloc map nor freed."""
    alloc_map = await _new_alloc_map(subject)
    for slot in await subject.call("available_slots"):
        wrong_allocation = DeviceAllocation(slots={slot: {DeviceId("no such device"): Decimal(1)}})
        for map_method in (alloc_map.apply, alloc_map.free):
            try:
                map_method(wrong_allocation)
            except ResourceError:
                continue
            except Exception as e:
                raise CheckFailed(f"{map_method.__name__} raises {type(e).__name__} for an unknown device") from e
            raise CheckFailed(f"{map_method.__name__} takes {format_value(wrong_allocation)}")


@CHECKS.add(_ALLOCATION_SOURCE)
async def random_requests_keep_the_invariants(subject: Subject) -> None:
    """Random requests keep the map's sums right; no device gives more than it has, and sick devices give nothing."""
    devices, alloc_map = await subject.devices(), await _new_alloc_map(subject)
    rng = random.Random(_SEED)
    requests = [(slot, quantity) for slot, quantity in (await subject.smallest_amounts()).items()]
    if not requests:
        raise NotApplicable("this node offers no device of the plugin")
    totals, empty_snapshot = dict(alloc_map.totals), alloc_map.snapshot()
    allocations: list[DeviceAllocation] = []
    for _ in range(_RANDOM_STEPS):
        if allocations and rng.random() < 0.4:
            alloc_map.free(allocations.pop(rng.randrange(len(allocations))))
        else:
            slot, quantum = rng.choice(requests)
            quantity = quantum * rng.randint(1, max(1, min(int(totals[slot] / quantum), 64)))
            try:
                allocation = alloc_map.allocate({slot: quantity})
            except (ResourceError, InvalidQuantity):
                continue
            expect(
                allocation.total(slot) == quantity, f"{allocation.total(slot)} {slot} where {quantity} were asked for"
            )
            expect(set(allocation.slots) == {slot}, f"for {slot} the map gave {format_value(set(allocation.slots))}")
            allocations.append(allocation)
        _check_balance(devices, allocations)
        for slot, free in alloc_map.available().items():
            expect(0 <= free <= totals[slot], f"{free} of {totals[slot]} {slot} are free")
    for allocation in allocations:
        alloc_map.free(allocation)
    expect(dict(alloc_map.available()) == totals, "after everything was freed, not everything is free")
    alloc_map.restore(empty_snapshot)
    expect(dict(alloc_map.available()) == totals, "a restored map is not what it was")


def _check_balance(devices: Iterable[ComputeDevice], allocations: Iterable[DeviceAllocation]) -> None:
    amounts_of_device: dict[DeviceId, dict[SlotName, Decimal]] = {}
    for allocation in allocations:
        for slot, amount_of_device in allocation.slots.items():
            for device_id, quantity in amount_of_device.items():
                amount_of_slot = amounts_of_device.setdefault(device_id, {})
                amount_of_slot[slot] = amount_of_slot.get(slot, Decimal(0)) + quantity
    device_by_id = {device.device_id: device for device in devices}
    for device_id, slots in amounts_of_device.items():
        device = device_by_id.get(device_id)
        if device is None:
            raise CheckFailed(f"the map gives {device_id}, which is not listed")
        expect(device.health is DeviceHealth.HEALTHY, f"the map gives {device_id}, which is unhealthy")
        slot_by_name = {slot.slot_name: slot for slot in device.slots}
        slot_of_group: dict[str, SlotName] = {}
        for slot_name, quantity in slots.items():
            device_slot = slot_by_name.get(slot_name)
            if device_slot is None:
                raise CheckFailed(f"the map gives {slot_name} of {device_id}, which has none")
            expect(
                quantity <= device_slot.amount, f"{device_id} gives {quantity} {slot_name} and has {device_slot.amount}"
            )
            expect(
                quantity % device_slot.quantum == 0,
                f"{device_id} gives {quantity} {slot_name} in steps of {device_slot.quantum}",
            )
            if device_slot.exclusive_group is not None:
                other_slot = slot_of_group.setdefault(device_slot.exclusive_group, slot_name)
                expect(
                    other_slot == slot_name, f"{device_id} gives {slot_name} and {other_slot}, which exclude each other"
                )


@CHECKS.add("accelerator v2, The conformance kit: recovery after restart")
async def an_allocation_is_applied_again_after_a_restart(subject: Subject) -> None:
    """A new process applies a workload's stored allocation to its own map."""
    allocation = await subject.an_allocation()
    stored_allocation = msgspec.json.encode(msgspec.to_builtins(allocation))
    async with subject.restart() as restarted_subject:
        restored_allocation = msgspec.convert(msgspec.json.decode(stored_allocation), DeviceAllocation, strict=False)
        alloc_map = await _new_alloc_map(restarted_subject)
        free_before = dict(alloc_map.available())
        alloc_map.apply(restored_allocation)
        for slot in restored_allocation.slots:
            free_amount = alloc_map.available()[slot]
            expect(free_amount < free_before[slot], f"{slot}: as much is free as if nobody held any")
        alloc_map.free(restored_allocation)
        expect(alloc_map.available() == free_before, "what was applied and freed is not free")
        attached_devices = await restarted_subject.call("alloc_to_devices", restored_allocation)
        expect(
            {device.device_id for device in attached_devices} == restored_allocation.device_ids(),
            "alloc_to_devices knows the devices no more",
        )
