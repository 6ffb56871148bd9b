"""The interface of device allocation maps: one per plugin and node."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.core.allocation.slot_pool import SlotPool


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinityHint:
    """Where the same kernel's other devices are. Followed where that costs nothing, never a reason to fail."""

    numa_nodes: frozenset[int] = field(default_factory=frozenset)


NO_HINT = AffinityHint()


class AbstractAllocMap(ABC):
    """How much of each slot each device of one plugin has given away.

    Contract: not safe for concurrent use; does no IO; every method either does all of its work or raises and changes
    nothing; ``free(allocate(r))`` and ``restore(snapshot())`` leave the map equal to what it was.
    """

    @property
    def books(self) -> Mapping[SlotName, SlotPool]:
        """The books of a stock map by slot, to be read only; other maps show none."""
        return {}

    @property
    def ranks(self) -> Mapping[DeviceId, int]:
        """The place of each device in the books."""
        return {}

    @property
    @abstractmethod
    def totals(self) -> Mapping[SlotName, Decimal]:
        """Every slot of the map with its sum over healthy devices, taken or not."""

    @abstractmethod
    def available(self) -> Mapping[SlotName, Decimal]:
        """What is free of every slot over healthy devices; a single request may get less, or nothing of a mixture."""

    @abstractmethod
    def allocate(
        self,
        request: Mapping[SlotName, Decimal],
        *,
        hint: AffinityHint = NO_HINT,
        eligible: frozenset[DeviceId] | None = None,
    ) -> DeviceAllocation:
        """Choose devices and take the quantities from them. Zero quantities ask for nothing.

        Args:
            request: slot -> quantity.
            hint: where the kernel's other devices are.
            eligible: only these devices may be given; None means any. Ids that are not there do no harm.

        Raises:
            UnsupportedResource: a slot that this map does not have.
            InvalidQuantity, NotMultipleOfQuantum: a quantity that cannot be had from any state of the devices.
            InsufficientResource: not now; ``data`` has slot, requested and available.
        """

    def grant(
        self, request: Mapping[SlotName, Decimal], hint: AffinityHint, eligible: frozenset[DeviceId] | None
    ) -> Mapping[SlotName, Mapping[DeviceId, Decimal]]:
        """As :meth:`allocate`, in the form of ``DeviceAllocation.slots``."""
        return self.allocate(request, hint=hint, eligible=eligible).slots

    @abstractmethod
    def apply(self, allocation: DeviceAllocation) -> None:
        """Take exactly this, also from unhealthy devices (a workload that is found again keeps what it has).

        Raises:
            InvalidAllocation: an unknown slot or device, more than is free, or an exclusive slot in the way.
        """

    @abstractmethod
    def free(self, allocation: DeviceAllocation) -> None:
        """Give exactly this back.

        Raises:
            InvalidAllocation: it is not held.
        """

    @abstractmethod
    def snapshot(self) -> Any:
        """The present allocations as an opaque value for :meth:`restore`."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot of this map."""
