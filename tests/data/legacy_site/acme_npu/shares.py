# mypy: ignore-errors
"""The same NPUs in shares; the second one is smaller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

from acme_npu.plugin import AcmePlugin
from ai.backend.agent.resources import AbstractAllocMap, DeviceSlotInfo, FractionAllocMap
from ai.backend.common.types import DeviceName, SlotName, SlotTypes


class AcmeSharesPlugin(AcmePlugin):
    key = DeviceName("acme-shares")
    slot_types: Sequence[tuple[SlotName, SlotTypes]] = ((SlotName("acme-shares.shares"), SlotTypes.COUNT),)
    exclusive_slot_types: set[str] = set()  # noqa: RUF012  # as vendors write it

    async def available_slots(self) -> Mapping[SlotName, Decimal]:
        return {SlotName("acme-shares.shares"): Decimal("2.75")}

    async def create_alloc_map(self) -> AbstractAllocMap:
        sizes = (Decimal("1.5"), Decimal("1.25"))
        return FractionAllocMap(
            device_slots={
                device.device_id: DeviceSlotInfo(SlotTypes.COUNT, SlotName("acme-shares.shares"), sizes[device.index])
                for device in await self.list_devices()
            },
            quantum_size=Decimal("0.1"),
        )
