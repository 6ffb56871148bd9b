"""Builds alloc maps from their specifications."""

from __future__ import annotations

from collections.abc import Sequence

from ai.backend.common.devices import AllocMapSpec, ComputeDevice
from ai.backend.common.errors import InvalidInput
from ai.backend.core.allocation.discrete import DiscreteAllocMap
from ai.backend.core.allocation.fractional import FractionalAllocMap
from ai.backend.core.allocation.ledger import LedgerAllocMap

STOCK = {"discrete": DiscreteAllocMap, "fractional": FractionalAllocMap}


def build_alloc_map(spec: AllocMapSpec, devices: Sequence[ComputeDevice]) -> LedgerAllocMap:
    """Returns an empty stock map over these devices.

    Raises:
        InvalidInput: there is no stock map of this kind.
        InvalidAllocation: the devices contradict each other.
    """
    kind = STOCK.get(spec.kind)
    if kind is None:
        raise InvalidInput(f"unknown kind of alloc map {spec.kind!r}; known are {', '.join(STOCK)}")
    return kind(devices, strategy=spec.strategy, affinity_policy=spec.affinity_policy)
