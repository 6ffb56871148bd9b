"""Records which devices of the node kernels and their device claims hold."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.ids import SlotName


class Holding(msgspec.Struct, frozen=True):
    """Holds the allocation of a kernel or of a device claim.

    ``taken_devices`` is the part of the allocation that the present devices provide.
    """

    allocation: DeviceAllocation
    taken_devices: DeviceAllocation


class ClaimedDevices(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the device claim of a kernel: its slots and, if the claim is bound already, its devices."""

    claim_id: str
    slots: frozenset[str]
    bound_devices: DeviceAllocation | None = None


@dataclass(slots=True)
class Holdings:
    """Holds the allocation of each live kernel, and the device claim that a kernel may share with other kernels.

    Attributes:
        of_kernel: what each kernel holds by itself.
        of_claim: what each device claim holds that some kernel holds.
        claim_of_kernel: the claim that a kernel holds, if it has one.
    """

    of_kernel: dict[str, Holding] = field(default_factory=dict)
    of_claim: dict[str, Holding] = field(default_factory=dict)
    claim_of_kernel: dict[str, str] = field(default_factory=dict)

    def all(self) -> list[tuple[str, Holding]]:
        """Returns the holdings of all kernels and of all claims, each with the id of a kernel that has the holding.

        For a claim of several kernels this is the first kernel.
        """
        kernel_of_claim = {claim_id: kernel_id for kernel_id, claim_id in reversed(self.claim_of_kernel.items())}
        claim_holdings = [(kernel_of_claim[claim_id], holding) for claim_id, holding in self.of_claim.items()]
        return [*self.of_kernel.items(), *claim_holdings]

    def holder_of(self, kernel_id: str, slot_name: SlotName) -> tuple[dict[str, Holding], str]:
        """Returns the place of the holding that gives a kernel a slot: a map of holdings and the key in this map.

        The holding is that of the kernel's claim if the claim has the slot, and otherwise the kernel's own.
        """
        claim_id = self.claim_of_kernel.get(kernel_id, "")
        claim_holding = self.of_claim.get(claim_id)
        if claim_holding is not None and slot_name in claim_holding.allocation.slots:
            return self.of_claim, claim_id
        return self.of_kernel, kernel_id

    def allocation(self, kernel_id: str) -> DeviceAllocation:
        """Returns the allocation of a kernel over all plugins, with the devices of its claim."""
        holding = self.of_kernel.get(kernel_id)
        claim_holding = self.of_claim.get(self.claim_of_kernel.get(kernel_id, ""))
        if holding is None or claim_holding is None:
            return holding.allocation if holding is not None else DeviceAllocation()
        return DeviceAllocation(slots={**holding.allocation.slots, **claim_holding.allocation.slots})

    def remove(self, kernel_id: str) -> list[Holding]:
        """Removes and returns the holding of a kernel, and the holding of its claim if no other kernel holds the
        claim.
        """
        removed_holdings = [self.of_kernel.pop(kernel_id, None)]
        claim_id = self.claim_of_kernel.pop(kernel_id, None)
        if claim_id is not None and claim_id not in self.claim_of_kernel.values():
            removed_holdings.append(self.of_claim.pop(claim_id, None))
        return [holding for holding in removed_holdings if holding is not None]


def split(allocation: DeviceAllocation, claimed_slots: Collection[str]) -> tuple[DeviceAllocation, DeviceAllocation]:
    """Splits an allocation into the devices of a kernel itself and the devices of its claim, by their slots."""
    claimed_devices = {slot: devices for slot, devices in allocation.slots.items() if slot in claimed_slots}
    other_devices = {slot: devices for slot, devices in allocation.slots.items() if slot not in claimed_slots}
    return DeviceAllocation(slots=other_devices), DeviceAllocation(slots=claimed_devices)
