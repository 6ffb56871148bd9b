from __future__ import annotations

from decimal import Decimal

import msgspec

from ai.backend.common.devices import ComputeDevice, DeviceAllocation, DeviceSlot, VariantProperty
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.states import FINAL_KERNEL_STATUSES, KernelStatus, SessionStatus, SlotType

X = SlotName("x.device")


def test_an_allocation_sums_up_its_devices() -> None:
    held = DeviceAllocation(slots={X: {DeviceId("a"): Decimal("0.3"), DeviceId("b"): Decimal("0.1")}})
    assert held.total(X) == Decimal("0.4")
    assert held.total(SlotName("y")) == 0
    assert held.device_ids() == {"a", "b"}


def test_a_device_travels_as_data() -> None:
    device = ComputeDevice(
        device_name=DeviceName("x"),
        device_id=DeviceId("a"),
        hw_location="0000:01:00.0",
        slots=(DeviceSlot(slot_name=X, slot_type=SlotType.COUNT, amount=Decimal("0.10"), quantum=Decimal("0.01")),),
        variant_properties=(VariantProperty(namespace="nvidia", feature="compute_capability", value="8.0"),),
    )
    sent = msgspec.json.encode(device)
    assert msgspec.json.decode(sent, type=ComputeDevice) == device
    assert str(device.variant_properties[0]) == "nvidia::compute_capability::8.0"


def test_final_statuses_know_that_they_are() -> None:
    assert {s for s in KernelStatus if s.is_final} == FINAL_KERNEL_STATUSES
    assert {s.value for s in SessionStatus if s.is_final} == {s.value for s in FINAL_KERNEL_STATUSES}
