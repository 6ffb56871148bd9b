"""Devices whose plugin has an alloc map of its own: only sums are known here, the agent chooses the devices."""

from __future__ import annotations

from collections.abc import Sequence

from ai.backend.common.devices import ComputeDevice, DeviceSlot
from ai.backend.common.errors import InsufficientResource
from ai.backend.common.ids import DeviceId, DeviceName
from ai.backend.common.slots import format_quantity
from ai.backend.core.allocation.alloc_map import AffinityHint
from ai.backend.core.allocation.ledger import Eligible, LedgerAllocMap
from ai.backend.core.allocation.slot_pool import Parts, SlotPool

ANY_DEVICE = DeviceId("*")
"""Stands for devices that the agent will choose. Never leaves the planner."""


class OpaqueAllocMap(LedgerAllocMap):
    """Counts each slot's sum over healthy devices as one device, :data:`ANY_DEVICE`.

    Who holds which device is not known, so a request that is restricted to some devices is held against their sizes
    only.
    """

    def __init__(self, devices: Sequence[ComputeDevice]) -> None:
        """Raises InvalidAllocation as :class:`LedgerAllocMap` does."""
        super().__init__(devices)
        self._sizes = {
            name: {d: n for d, n, healthy in zip(self._ids, book.amounts, self._healthy, strict=True) if healthy}
            for name, book in self._books.items()
        }
        slots = tuple(
            DeviceSlot(slot_name=b.name, slot_type=b.slot_type, amount=b.quantity(b.total), quantum=b.quantum)
            for b in self._books.values()
        )
        pool = ComputeDevice(device_name=DeviceName("pool"), device_id=ANY_DEVICE, hw_location="", slots=slots)
        super().__init__([pool])

    def _choose(self, book: SlotPool, quanta: int, hint: AffinityHint, eligible: Eligible) -> Parts:
        sizes = self._sizes[book.name]
        most = book.total_free if eligible is None else sum(n for d, n in sizes.items() if d in eligible)
        if quanta > min(book.total_free, most):
            requested, available = (format_quantity(book.quantity(n)) for n in (quanta, min(book.total_free, most)))
            raise InsufficientResource(
                f"needs {requested} {book.name}; at most {available} free",
                data={"slot": book.name, "requested": requested, "available": available},
            )
        return self._pick(book, quanta, self._all, book.largest)

    def _pick(self, book: SlotPool, quanta: int, scope: int, largest: int) -> Parts:
        return [(0, quanta)]

    def _interleave(self, book: SlotPool, quanta: int, nodes: Sequence[int], largest: int) -> Parts:
        return [(0, quanta)]
