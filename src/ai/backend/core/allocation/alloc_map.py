"""The interface of device allocation maps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from decimal import Decimal

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.ids import SlotName


class AbstractAllocMap(ABC):
    """Which device holds how much of each slot. See the stock maps in this package."""

    @abstractmethod
    def allocate(self, request: Mapping[SlotName, Decimal]) -> DeviceAllocation: ...

    @abstractmethod
    def apply(self, allocation: DeviceAllocation) -> None: ...

    @abstractmethod
    def free(self, allocation: DeviceAllocation) -> None: ...
