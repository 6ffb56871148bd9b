"""Defines alloc maps of v1, which hold mutable mappings. The stock ones allocate by ours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, ClassVar, NamedTuple

from ai.backend.common.devices import AllocationStrategy as OurStrategy
from ai.backend.common.devices import AllocMapSpec, ComputeDevice, DeviceSlot
from ai.backend.common.devices import DeviceAllocation as Held
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.states import SlotType
from ai.backend.core.allocation.stock_maps import build_alloc_map
from ai.backend.plugin.accelerator.shapes import InvalidResponse
from ai.backend.pluginhost.v1.api.exceptions import InvalidResourceCombination
from ai.backend.pluginhost.v1.api.types import DeviceAllocation, SlotTypes
from ai.backend.pluginhost.v1.values import to_decimal

__all__ = [
    "AbstractAllocMap", "AllocationStrategy", "DeviceSlotInfo", "DiscretePropertyAllocMap", "FractionAllocMap",
]  # fmt: skip


class AllocationStrategy(StrEnum):
    FILL = "fill"
    EVENLY = "evenly"


class DeviceSlotInfo(NamedTuple):
    """Describes the slot of a device, and its amount."""

    slot_type: SlotTypes
    slot_name: SlotName
    amount: Decimal


@dataclass(frozen=True)
class AffinityHint:
    """The class of affinity hints of v1, for annotations in plugins. Alloc maps get None instead of a hint."""

    devices: Any
    affinity_map: Any
    policy: Any


class AbstractAllocMap(ABC):
    """Allocates devices as v1 does; ``allocations`` is slot -> device -> allocated amount, with every device."""

    allocations: dict[SlotName, dict[DeviceId, Decimal]]

    def __init__(
        self,
        *,
        device_slots: Mapping[DeviceId, DeviceSlotInfo] | None = None,
        device_mask: Iterable[DeviceId] | None = None,
        exclusive_slot_types: Iterable[str] | None = None,
    ) -> None:
        self.device_slots = dict(device_slots or {})
        self.device_mask = frozenset(device_mask or ())
        self.exclusive_slot_types = frozenset(exclusive_slot_types or ())
        self.slot_types = {info.slot_name: info.slot_type for info in self.device_slots.values()}
        self.clear()

    def clear(self) -> None:
        self.allocations = {}
        for device, slot_info in self.device_slots.items():
            self.allocations.setdefault(slot_info.slot_name, {})[device] = Decimal(0)

    def check_exclusive(self, a: str, b: str) -> bool:
        """Returns True if one request cannot have both slots."""
        return a != b and is_exclusive(a, self.exclusive_slot_types) and is_exclusive(b, self.exclusive_slot_types)

    def get_current_allocations(
        self, affinity_hint: AffinityHint | None, slot_name: SlotName
    ) -> list[tuple[DeviceId, Decimal]]:
        """Lists the devices of a slot with their allocated amounts, sorted by the remaining amount, largest first."""
        del affinity_hint
        amount_of_device = self.allocations.get(slot_name, {})
        return sorted(
            amount_of_device.items(), key=lambda item: item[1] - to_decimal(self.device_slots[item[0]].amount, "amount")
        )

    def update_affinity_hint(self, existing_alloc: DeviceAllocation, affinity_hint: AffinityHint | None) -> None:
        """Does nothing. In v1 this method updates the affinity hint, and this platform passes no hint."""

    @abstractmethod
    def allocate(
        self,
        slots: Mapping[SlotName, Decimal],
        *,
        affinity_hint: AffinityHint | None = None,
        context_tag: str | None = None,
    ) -> DeviceAllocation: ...

    @abstractmethod
    def apply_allocation(self, existing_alloc: DeviceAllocation) -> None: ...

    @abstractmethod
    def free(self, existing_alloc: DeviceAllocation) -> None: ...


class _StockAllocMap(AbstractAllocMap):
    kind: ClassVar[str]

    def __init__(self, *, allocation_strategy: AllocationStrategy = AllocationStrategy.EVENLY, **options: Any) -> None:
        super().__init__(**options)
        self.allocation_strategy = AllocationStrategy(allocation_strategy)

    @property
    def spec(self) -> AllocMapSpec:
        return AllocMapSpec(kind=self.kind, strategy=OurStrategy(self.allocation_strategy.value))

    def allocate(
        self,
        slots: Mapping[SlotName, Decimal],
        *,
        affinity_hint: AffinityHint | None = None,
        context_tag: str | None = None,
        **_: Any,
    ) -> DeviceAllocation:
        """Allocates devices by our stock map. Raises our ResourceErrors and InvalidQuantity."""
        refuse_combination([slot for slot, quantity in slots.items() if quantity], self.exclusive_slot_types)
        devices = [
            ComputeDevice(device_name=DeviceName("v1"), device_id=device, hw_location="", slots=(slot,))
            for device, slot in device_slots(self).items()
        ]
        stock_map = build_alloc_map(self.spec, devices)
        held_amounts = {
            slot: {device: quantity for device, quantity in amounts.items() if quantity}
            for slot, amounts in self.allocations.items()
        }
        stock_map.apply(Held(slots={slot: amounts for slot, amounts in held_amounts.items() if amounts}))
        allocation = stock_map.allocate({slot: to_decimal(quantity, slot) for slot, quantity in slots.items()}).slots
        self.apply_allocation(allocation)
        return allocation

    def apply_allocation(self, existing_alloc: DeviceAllocation) -> None:
        for slot, amounts in existing_alloc.items():
            for device, quantity in amounts.items():
                self.allocations[slot][device] += quantity

    def free(self, existing_alloc: DeviceAllocation) -> None:
        for slot, amounts in existing_alloc.items():
            for device, quantity in amounts.items():
                self.allocations[slot][device] -= quantity


class DiscretePropertyAllocMap(_StockAllocMap):
    kind = "discrete"


class FractionAllocMap(_StockAllocMap):
    """Allocates shares of devices, and does not split a share that one device can hold.

    This holds whatever ``enforce_physical_continuity`` says.
    """

    kind = "fractional"

    def __init__(
        self, *, quantum_size: Decimal = Decimal("0.01"), enforce_physical_continuity: bool = True, **options: Any
    ) -> None:
        super().__init__(**options)
        self.quantum_size = Decimal(str(quantum_size))
        self.enforce_physical_continuity = enforce_physical_continuity


def is_exclusive(slot: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(slot, pattern) for pattern in patterns)


def refuse_combination(slots: Iterable[SlotName], patterns: Iterable[str]) -> None:
    """Raises InvalidResourceCombination if a request has two slots that exclude each other."""
    exclusive_slots = sorted(slot for slot in slots if is_exclusive(slot, patterns))
    if len(exclusive_slots) > 1:
        raise InvalidResourceCombination(f"{exclusive_slots[0]} and {exclusive_slots[1]} cannot be had together")


def slot_type(kind: object, slot: str) -> SlotType:
    """Converts a v1 slot type to ours. Raises InvalidResponse."""
    try:
        return SlotType(str(getattr(kind, "value", kind)))
    except ValueError:
        raise InvalidResponse(f"{slot} is of the slot type {kind!s:.40}, which there is not here") from None


def device_slots(alloc_map: AbstractAllocMap) -> dict[DeviceId, DeviceSlot]:
    """Converts the devices of a v1 alloc map to the slot (name, type, amount and quantum) of each device.

    The quantum of counts is the map's, if it has one; else 1, or 0.01 if any amount is no whole number. Raises
    InvalidResponse: something in the map is not of its type.
    """
    amounts: dict[DeviceId, tuple[SlotName, SlotType, Decimal]] = {}
    for device, slot_info in alloc_map.device_slots.items():
        description = f"create_alloc_map: the amount of {device!r:.64}"
        try:
            v1_type, slot_name, amount = slot_info
        except (TypeError, ValueError):
            raise InvalidResponse(f"create_alloc_map: the slot of {device!r:.64} is {slot_info!r:.60}") from None
        amounts[device] = (SlotName(slot_name), slot_type(v1_type, slot_name), to_decimal(amount, description))
    quantum = getattr(alloc_map, "quantum_size", None)
    quantum_by_slot: dict[SlotName, Decimal] = {}
    for slot_name, _, amount in amounts.values():
        amount_step = Decimal(1) if amount == amount.to_integral_value() else Decimal("0.01")
        quantum_by_slot[slot_name] = min(amount_step, quantum_by_slot.get(slot_name, amount_step))
    return {
        device: DeviceSlot(
            slot_name=slot_name,
            slot_type=v1_type,
            amount=amount,
            quantum=Decimal(1)
            if v1_type is not SlotType.COUNT
            else Decimal(quantum)
            if quantum is not None
            else quantum_by_slot[slot_name],
            exclusive_group="exclusive" if is_exclusive(slot_name, alloc_map.exclusive_slot_types) else None,
        )
        for device, (slot_name, v1_type, amount) in amounts.items()
    }
