# mypy: ignore-errors
"""An alloc map of the vendor's own: the last NPU first. Its own slot, so that both can be installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from acme_npu.plugin import AcmePlugin
from ai.backend.agent.exception import InsufficientResource
from ai.backend.agent.resources import AbstractAllocMap, DeviceSlotInfo
from ai.backend.common.types import DeviceId, DeviceName, SlotName, SlotTypes

SLOT = SlotName("acme-own.device")


class LastFirst(AbstractAllocMap):
    def allocate(
        self, slots: Mapping[SlotName, Decimal], *, affinity_hint: Any = None, context_tag: str | None = None
    ) -> Mapping[SlotName, Mapping[DeviceId, Decimal]]:
        free = [d for d, info in self.device_slots.items() if self.allocations[SLOT][d] < info.amount]
        if len(free) < slots[SLOT]:
            raise InsufficientResource("not enough", SLOT, slots[SLOT], len(free))
        chosen = {SLOT: dict.fromkeys(sorted(free, reverse=True)[: int(slots[SLOT])], 1)}  # an int, as vendors do
        self.apply_allocation(chosen)
        return chosen

    def apply_allocation(self, existing_alloc: Mapping[SlotName, Mapping[DeviceId, Decimal]]) -> None:
        for device, amount in existing_alloc[SLOT].items():
            self.allocations[SLOT][device] += amount

    def free(self, existing_alloc: Mapping[SlotName, Mapping[DeviceId, Decimal]]) -> None:
        for device, amount in existing_alloc[SLOT].items():
            self.allocations[SLOT][device] -= amount


class AcmeOwnMapPlugin(AcmePlugin):
    key = DeviceName("acme-own")
    slot_types: Sequence[tuple[SlotName, SlotTypes]] = ((SLOT, SlotTypes.COUNT),)

    async def available_slots(self) -> Mapping[SlotName, Decimal]:
        return {SLOT: Decimal(2)}

    async def create_alloc_map(self) -> AbstractAllocMap:
        return LastFirst(
            device_slots={
                d.device_id: DeviceSlotInfo(SlotTypes.COUNT, SLOT, Decimal(1)) for d in await self.list_devices()
            }
        )
