"""Counts devices whose plugin has its own alloc map: only sums are known, the agent chooses the devices."""

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
"""Placeholder for devices that the agent will choose. Never leaves the scheduler."""


class OpaqueAllocMap(LedgerAllocMap):
    """Counts each slot's sum over healthy devices as one device, :data:`ANY_DEVICE`.

    A request that is restricted to some devices is compared with their sizes only, as their use is not known.
    """

    def __init__(self, devices: Sequence[ComputeDevice]) -> None:
        """Raises InvalidAllocation as :class:`LedgerAllocMap` does."""
        super().__init__(devices)
        self._sizes = {
            name: {d: n for d, n, healthy in zip(self._ids, pool.amounts, self._healthy, strict=True) if healthy}
            for name, pool in self._pools.items()
        }
        slots = tuple(
            DeviceSlot(slot_name=b.name, slot_type=b.slot_type, amount=b.quantity(b.total), quantum=b.quantum)
            for b in self._pools.values()
        )
        aggregate = ComputeDevice(device_name=DeviceName("pool"), device_id=ANY_DEVICE, hw_location="", slots=slots)
        super().__init__([aggregate])

    def _choose(self, pool: SlotPool, quanta: int, hint: AffinityHint, eligible: Eligible) -> Parts:
        sizes = self._sizes[pool.name]
        most = pool.total_free if eligible is None else sum(n for d, n in sizes.items() if d in eligible)
        if quanta > min(pool.total_free, most):
            requested, available = (format_quantity(pool.quantity(n)) for n in (quanta, min(pool.total_free, most)))
            raise InsufficientResource(
                f"needs {requested} {pool.name}; at most {available} free",
                data={"slot": pool.name, "requested": requested, "available": available},
            )
        return self._pick(pool, quanta, self._all, pool.largest)

    def _pick(self, pool: SlotPool, quanta: int, scope: int, largest: int) -> Parts:
        return [(0, quanta)]

    def _interleave(self, pool: SlotPool, quanta: int, nodes: Sequence[int], largest: int) -> Parts:
        return [(0, quanta)]
