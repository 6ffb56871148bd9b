"""The books that the agent keeps for an alloc map of a plugin's own."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from ai.backend.common.devices import AllocMapSpec, ComputeDevice, DeviceAllocation, DeviceHealth, DeviceSlot
from ai.backend.common.errors import InsufficientResource, InvalidAllocation, ResourceError, UnsupportedResource
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.states import SlotType
from ai.backend.plugin.accelerator import build_alloc_map
from ai.backend.pluginhost import ExternalAllocMap, allocator

SLOT = SlotName("npu.device")


def device(name: str, health: DeviceHealth = DeviceHealth.HEALTHY) -> ComputeDevice:
    slot = DeviceSlot(slot_name=SLOT, slot_type=SlotType.COUNT, amount=Decimal(1))
    return ComputeDevice(
        device_name=DeviceName("npu"), device_id=DeviceId(name), hw_location="", slots=(slot,), health=health
    )


DEVICES = [device("a"), device("b"), device("ill", DeviceHealth.UNHEALTHY)]


def given(**devices: int) -> DeviceAllocation:
    return DeviceAllocation(slots={SLOT: {DeviceId(name): Decimal(n) for name, n in devices.items()}})


def test_it_is_the_plugins_map_with_books() -> None:
    spec = AllocMapSpec(kind="discrete")
    stock = build_alloc_map(spec, DEVICES)
    chosen = ExternalAllocMap(DEVICES, allocator(build_alloc_map(spec, DEVICES)))
    assert (chosen.totals, chosen.available()) == (stock.totals, stock.available())
    before = chosen.snapshot()
    first, second = chosen.allocate({SLOT: Decimal(1)}), chosen.allocate({SLOT: Decimal(1)})
    assert (first, second) == (given(a=1), given(b=1))
    with pytest.raises(InsufficientResource):
        chosen.allocate({SLOT: Decimal(1)})
    chosen.free(first)
    assert chosen.allocate({SLOT: Decimal(1)}) == first
    chosen.restore(before)
    assert chosen.available() == {SLOT: Decimal(2)}
    assert chosen.allocate({SLOT: Decimal(2)}) == given(a=1, b=1)
    with pytest.raises(UnsupportedResource):
        chosen.allocate({SlotName("other"): Decimal(1)})
    assert chosen.allocate({SlotName("other"): Decimal(0)}) == DeviceAllocation()


def test_only_eligible_and_healthy_devices_are_offered_to_it() -> None:
    asked: list[Any] = []

    def choose(held: Any, request: Any, hint: Any, eligible: Any) -> DeviceAllocation:
        asked.append((held, eligible))
        return given(b=1)

    chosen = ExternalAllocMap(DEVICES, choose)
    chosen.allocate({SLOT: Decimal(1)}, eligible=frozenset({DeviceId("b"), DeviceId("ill")}))
    assert asked == [(DeviceAllocation(), {"b"})]
    with pytest.raises(InvalidAllocation, match="was not to be given"):
        chosen.allocate({SLOT: Decimal(1)}, eligible=frozenset({DeviceId("a")}))
    assert asked[1] == (given(b=1), {"a"})


@pytest.mark.parametrize(
    "answer",
    [
        None,
        given(a=2),
        given(a=1, b=1),
        given(a=2, b=-1),
        given(ill=1),
        given(elsewhere=1),
        DeviceAllocation(slots={SLOT: {DeviceId("a"): 1.0}}),  # type: ignore[dict-item]  # that is the lie
        DeviceAllocation(slots={SLOT: {DeviceId("a"): Decimal("sNaN")}}),
        DeviceAllocation(slots={**given(a=1).slots, SlotName("more"): {DeviceId("a"): Decimal(1)}}),
        RuntimeError("no"),
    ],
    ids=str,
)
def test_a_lie_is_refused_and_told(answer: Any) -> None:
    told: list[str | None] = []

    def choose(*_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    chosen = ExternalAllocMap(DEVICES, choose, complain=told.append)
    before = chosen.snapshot()
    with pytest.raises(ResourceError):
        chosen.allocate({SLOT: Decimal(1)})
    assert chosen.snapshot() == before
    assert len(told) == 1
    assert (told[0] or "").startswith("allocate of its alloc map: ")
    chosen.choose = lambda *_: given(a=1)
    chosen.allocate({SLOT: Decimal(1)})
    assert told[1:] == [None]
