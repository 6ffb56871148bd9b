"""Every field of an answer that can be wrong is named by the complaint; what is right passes unchanged."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, cast

import pytest

from ai.backend.common.devices import (
    ComputeDevice,
    ComputeUnit,
    DeviceAllocation,
    DeviceLink,
    DeviceSlot,
    LinkKind,
    MemorySpec,
    SlotDisplay,
    VariantFeature,
    VariantNamespace,
    VariantProperty,
)
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.states import SlotType
from ai.backend.common.structs import replace
from ai.backend.plugin.accelerator import AttachedDevice, NodeInfo, responses
from ai.backend.plugin.accelerator.shapes import InvalidResponse

SLOT = SlotName("npu.device")
DISPLAYS = (SlotDisplay(slot_name=SLOT, slot_type=SlotType.COUNT),)
A, B = (
    ComputeDevice(
        device_name=DeviceName("npu"),
        device_id=DeviceId(name),
        hw_location="0000:00:00.0",
        slots=(DeviceSlot(slot_name=SLOT, slot_type=SlotType.COUNT, amount=Decimal(2), quantum=Decimal("0.5")),),
        numa_node=0,
        memory_spec=MemorySpec(total_memory=1 << 30, bandwidth=1.5),
        variant_properties=(VariantProperty(namespace="n", feature="f", value="v"),),
    )
    for name in "ab"
)


def devices(*given: Any) -> tuple[ComputeDevice, ...]:
    return responses.validate_devices(list(given), key="npu", displays=DISPLAYS, owner_of=lambda _: None)


def link(**changes: Any) -> DeviceLink:
    return DeviceLink(**{"peer": DeviceId("b"), "kind": LinkKind.DIRECT, "bandwidth_gib_s": 25.0, **changes})


def test_what_is_right_passes_unchanged() -> None:
    linked = replace(A, links=(link(),))
    assert devices(linked, B) == (linked, B)
    assert responses.validate_displays(DISPLAYS, owner_of=lambda _: None) == DISPLAYS
    assert responses.validate_slots({SLOT: Decimal(3)}, listed_devices=[A, B], displays=DISPLAYS) == {SLOT: Decimal(3)}
    spaces = (VariantNamespace(namespace="n", features=(VariantFeature(name="f"),)),)
    assert responses.validate_namespaces(spaces) == spaces
    info = NodeInfo(driver_version="1", extra={"a": "b"})
    assert responses.validate_node_info(info) == info


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"device_id": "a\r\x1b[31m"}, "device_id has characters that do not print"),
        ({"numa_node": -1}, "numa_node is -1; an unknown node is None"),
        ({"memory_size": -1}, "memory_size is -1"),
        ({"processing_units": -5}, "processing_units is -5"),
        ({"hw_location": "x" * 300}, "hw_location is 300 characters long; 256 are allowed"),
        ({"health_reason": "x" * 2000}, "health_reason is 2000 characters long"),
        ({"memory_spec": MemorySpec(total_memory=-1)}, "memory_spec.total_memory is -1"),
        ({"memory_spec": MemorySpec(total_memory=1, bandwidth=math.inf)}, "memory_spec.bandwidth is inf"),
        ({"compute_units": (ComputeUnit(name="sm", count=-1),)}, "compute_units: sm is -1"),
        ({"compute_units": (ComputeUnit(name="sm", count=1),) * 300}, "compute_units has 300 entries"),
        ({"links": (link(bandwidth_gib_s=math.nan),)}, "links: bandwidth_gib_s is nan"),
        ({"links": (link(peer="a"),)}, "links lead to the unknown device 'a'"),
        ({"links": (link(),) * 9}, "links has 9 entries for 2 devices"),
        ({"slots": A.slots * 2}, "device 'a' has a slot twice"),
        ({"slots": (replace(A.slots[0], quantum=Decimal(1)),)}, "quantum differs from that of other devices"),
        ({"slots": (replace(A.slots[0], quantum=Decimal("1e-9")),)}, "quantum is 1E-9"),
        ({"slots": (replace(A.slots[0], amount=Decimal("1e30")),)}, "amount is 1E+30"),
        ({"slots": (replace(A.slots[0], exclusive_group="x" * 200),)}, "exclusive_group is 200 characters long"),
        ({"slots": (replace(A.slots[0], amount=cast("Decimal", 1.5)),)}, "is the float 1.5; quantities are Decimal"),
        ({"health": "ill"}, "Invalid enum value 'ill'"),
        ({"links": None}, "Expected `array`, got `None`"),
    ],
    ids=str,
)
def test_a_field_that_is_wrong_is_named(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidResponse) as found:
        devices(B, replace(A, **changes))
    assert complaint in str(found.value)
    assert len(str(found.value)) < 500


class _Explosive:
    @property
    def slots(self) -> Any:
        raise ZeroDivisionError("boom")


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: devices(_Explosive()), "cannot be read: ZeroDivisionError: boom"),
        (lambda: responses.validate_displays("abc", owner_of=lambda _: None), "is a str"),
        (
            lambda: responses.validate_displays(
                [replace(DISPLAYS[0], number_round_length=-1)], owner_of=lambda _: None
            ),
            "number_round_length is -1",
        ),
        (
            lambda: responses.validate_displays(
                [replace(DISPLAYS[0], slot_name=SlotName(f"npu.{n}")) for n in range(999)], owner_of=str
            ),
            "has 999 entries",
        ),
        (lambda: responses.validate_displays(DISPLAYS, owner_of=lambda _: "gpu"), "which belongs to the plugin gpu"),
        (
            lambda: responses.validate_slots({SLOT: Decimal(5)}, listed_devices=[A, B], displays=DISPLAYS),
            "offers 5 npu.device; the devices have 4",
        ),
        (
            lambda: responses.validate_slots({SLOT: Decimal("NaN")}, listed_devices=[A], displays=DISPLAYS),
            "npu.device is NaN",
        ),
        (
            lambda: responses.validate_slots([SLOT], listed_devices=[A], displays=DISPLAYS),
            "is a list; a mapping of SlotName to Decimal",
        ),
        (
            lambda: responses.validate_slots(None, listed_devices=[A], displays=DISPLAYS),
            "is a NoneType; a mapping of SlotName to Decimal is expected",
        ),
        (
            lambda: responses.validate_displays(None, owner_of=lambda _: None),
            "is a NoneType; a sequence of SlotDisplay is expected",
        ),
        (
            lambda: responses.validate_node_info(NodeInfo(extra=cast("dict[str, str]", {"a": 1}))),
            "Expected `str`, got `int`",
        ),
        (lambda: responses.validate_node_info(None), "Expected `object`, got `None`"),
        (
            lambda: responses.validate_namespaces([VariantNamespace(namespace="x" * 200)]),
            "namespace is 200 characters long",
        ),
        (
            lambda: responses.validate_attached(
                [AttachedDevice(device_id=DeviceId("z"), model_name="")], allocation=DeviceAllocation()
            ),
            "has the device 'z', which is not allocated",
        ),
        (lambda: responses.validate_attached(None, allocation=DeviceAllocation()), "is a NoneType"),
    ],
)
def test_an_answer_that_is_wrong_is_refused(call: Callable[[], Any], complaint: str) -> None:
    with pytest.raises(InvalidResponse) as found:
        call()
    assert complaint in str(found.value)
