"""Amounts of alternatives: what a kernel takes by each of them, and what an agent binds."""

from __future__ import annotations

from decimal import Decimal

import pytest

from ai.backend.common.devices import AllocMapSpec, DeviceAllocation
from ai.backend.common.errors import InsufficientResource, InvalidAllocation
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.structs import replace
from ai.backend.core.allocation.node import NodeAllocator, PluginDevices
from ai.backend.core.allocation.requests.amounts import (
    alternatives_with,
    largest_slots,
    slots_of_alternative,
    slots_with_amounts,
)
from ai.backend.core.allocation.requests.compiled import DeviceRequest, RequestCompiler
from tests.unit.core.allocation.builders import device, slot

SLOT = SlotName("x.device")


def requests(*texts: str) -> list[DeviceRequest]:
    return list(map(RequestCompiler().compile, texts))


def slots(**amounts: int) -> ResourceSlot:
    return ResourceSlot({name.replace("_", "."): Decimal(amount) for name, amount in amounts.items()})


def test_each_alternative_takes_what_it_says_and_no_more() -> None:
    choice = requests('amount("x.device", 1)', 'amount("x.device", 4)', 'amount("y.device", 2)')
    named = slots_with_amounts(choice)
    waiting = largest_slots(slots(cpu=2, x_device=1), choice)
    assert waiting == slots(cpu=2, x_device=4, y_device=2)
    taken = [slots_of_alternative(waiting, request, named) for request in choice]
    assert taken == [slots(cpu=2, x_device=1), slots(cpu=2, x_device=4), slots(cpu=2, y_device=2)]
    assert [largest_slots(each, choice) for each in taken] == [waiting] * 3, "one that was placed may wait again"
    assert [alternatives_with(each, choice) for each in taken] == [[request] for request in choice]


def test_kernels_without_these_slots_are_as_they_were() -> None:
    choice = requests('amount("x.device", 1)', 'amount("x.device", 4)')
    other = slots(cpu=2, y_device=1)
    assert largest_slots(other, choice) == slots_of_alternative(other, choice[0], slots_with_amounts(choice)) == other
    assert alternatives_with(other, choice) == choice
    plain = requests("units >= 1", "units >= 2")
    assert alternatives_with(other, plain) == plain
    assert largest_slots(other, plain) == other


def node(**models: int) -> NodeAllocator:
    devices = [
        replace(device(f"{model}{number}", slot(SLOT)), model_name=model)
        for model, count in models.items()
        for number in range(count)
    ]
    plugin = PluginDevices(name=DeviceName("x"), devices=tuple(devices), alloc_map=AllocMapSpec(kind="discrete"))
    return NodeAllocator.from_devices([plugin])


def plan(*device_ids: str) -> DeviceAllocation:
    return DeviceAllocation(slots={SLOT: {DeviceId(each): Decimal(1) for each in device_ids}})


def test_an_agent_binds_only_alternatives_with_the_amounts_that_were_placed() -> None:
    choice = requests('model == "H" && amount("x.device", 1)', 'model == "A" && amount("x.device", 2)')
    allocator = node(H=2, A=3)
    bound = allocator.verify_or_rebind(slots(x_device=2), plan("A0", "gone"), device_requests=choice)
    assert bound.device_ids() == {"A0", "A1"}, "two of the preferred model are what no alternative allows"
    with pytest.raises(InsufficientResource):
        allocator.verify_or_rebind(slots(x_device=2), DeviceAllocation(), device_requests=choice)
    one = allocator.verify_or_rebind(slots(x_device=1), plan("A2"), device_requests=choice)
    assert one.device_ids() <= {"H0", "H1"}
    with pytest.raises(InvalidAllocation, match="amounts"):
        allocator.verify_or_rebind(slots(x_device=3), DeviceAllocation(), device_requests=choice)
