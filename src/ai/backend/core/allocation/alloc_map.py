"""Defines the interface of device allocation maps. Each plugin of a node has one map."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.core.allocation.slot_pool import SlotPool


class AffinityHint(msgspec.Struct, frozen=True, kw_only=True):
    """Names the NUMA nodes of the devices that the same kernel already has.

    A preference that never makes an allocation fail.
    """

    numa_nodes: frozenset[int] = msgspec.field(default_factory=frozenset)


NO_HINT = AffinityHint()


class AbstractAllocMap(ABC):
    """Tracks how much of each slot each device of one plugin has allocated.

    Not safe for concurrent use; does no IO. Every method does all of its work, or raises and changes nothing;
    ``free(allocate(r))`` and ``restore(snapshot())`` leave the map equal to what it was.
    """

    @property
    def pools(self) -> Mapping[SlotName, SlotPool]:
        """Returns the slot pools of a stock map by slot name, for reading only. Other maps return no pools."""
        return {}

    @property
    def ranks(self) -> Mapping[DeviceId, int]:
        """Returns the index of each device in the slot pools."""
        return {}

    @property
    @abstractmethod
    def totals(self) -> Mapping[SlotName, Decimal]:
        """Returns the sum of each slot over the healthy devices, whether the slot is free or allocated."""

    @abstractmethod
    def available(self) -> Mapping[SlotName, Decimal]:
        """Returns the free amount of every slot, summed over the healthy devices.

        One request may get less of a slot, or not get several slots together.
        """

    @abstractmethod
    def allocate(
        self,
        request: Mapping[SlotName, Decimal],
        *,
        hint: AffinityHint = NO_HINT,
        eligible: frozenset[DeviceId] | None = None,
    ) -> DeviceAllocation:
        """Chooses devices and takes the quantities from them. Zero quantities are ignored.

        Only ``eligible`` devices may be given, None for any; ids that do not exist do no harm.

        Raises:
            UnsupportedResource: a slot that this map does not have.
            InvalidQuantity, NotMultipleOfQuantum: a quantity that cannot be had from any state of the devices.
            InsufficientResource: not now; ``data`` has slot, requested and available.
        """

    def grant(
        self, request: Mapping[SlotName, Decimal], hint: AffinityHint, eligible: frozenset[DeviceId] | None
    ) -> Mapping[SlotName, Mapping[DeviceId, Decimal]]:
        """Allocates like :meth:`allocate`, but returns the allocation as slot -> device -> quantity.

        This is the form of ``DeviceAllocation.slots``.
        """
        return self.allocate(request, hint=hint, eligible=eligible).slots

    @abstractmethod
    def apply(self, allocation: DeviceAllocation) -> None:
        """Takes exactly the given allocation, even from unhealthy devices, so that a recovered workload keeps its
        devices.

        Raises InvalidAllocation: an unknown slot or device, more than is free, or an exclusive slot in the way.
        """

    @abstractmethod
    def free(self, allocation: DeviceAllocation) -> None:
        """Releases exactly this allocation. Raises InvalidAllocation if it is not held."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Returns the present allocations as an opaque value for :meth:`restore`."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Restores a snapshot of this map."""
