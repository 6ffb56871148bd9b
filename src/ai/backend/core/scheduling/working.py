"""What-if state of one agent during a decision."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import InvalidQuantity, ResourceError
from ai.backend.common.ids import AgentId
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.allocation.node import NodeAllocator
from ai.backend.core.scheduling.snapshot import AgentView

#: What an allocator raises where a request cannot be served.
REFUSALS = (ResourceError, InvalidQuantity)
Checkpoint = tuple[Any, ResourceSlot, int]


class WorkingAgent:
    """An agent with an allocator that the decision may change and roll back.

    ``available`` and ``count`` are kept beside the allocator because every pending session reads them of every agent.
    """

    def __init__(self, view: AgentView, order: tuple[str, ...]) -> None:
        self.view = view
        self._allocator = NodeAllocator.from_devices(view.plugins, order=order)
        self._empty = self._allocator.snapshot()
        self.totals = self._allocator.totals
        for held in view.held:
            self._allocator.adopt(held.slots, held.devices)
        self.available = self._allocator.available()
        self.count = len(view.held)
        self._refusals: dict[tuple[tuple[str, Decimal], ...], str | None] = {}

    @property
    def agent_id(self) -> AgentId:
        return self.view.agent_id

    def has_room(self, kernels: int = 1) -> bool:
        return self.view.kernel_limit is None or self.count + kernels <= self.view.kernel_limit

    def take(self, request: ResourceSlot) -> DeviceAllocation:
        """Raises one of :data:`REFUSALS`; then nothing has changed."""
        allocation = self._allocator.allocate(request)
        self.count += 1
        self.available = self._allocator.available()
        return allocation

    def checkpoint(self) -> Checkpoint:
        return self._allocator.snapshot(), self.available, self.count

    def rollback(self, checkpoint: Checkpoint) -> None:
        snapshot, self.available, self.count = checkpoint
        self._allocator.restore(snapshot)

    def clear(self) -> None:
        """Forget everything that it holds, until the next :meth:`rollback`."""
        self._allocator.restore(self._empty)
        self.available, self.count = self.totals, 0

    def refusal_when_empty(self, requests: list[ResourceSlot]) -> str | None:
        """Why this agent could not hold all of these even if it held nothing else; None if it could."""
        if self.view.kernel_limit is not None and len(requests) > self.view.kernel_limit:
            return f"{self.agent_id} may hold {self.view.kernel_limit} kernels"
        key = tuple(item for request in requests for item in (*sorted(request.items()), ("", Decimal(0))))
        if key not in self._refusals:
            now = self._allocator.snapshot()
            self._allocator.restore(self._empty)
            self._refusals[key] = None
            try:
                for request in requests:
                    self._allocator.allocate(request)
            except REFUSALS as e:
                self._refusals[key] = e.message
            finally:
                self._allocator.restore(now)
        return self._refusals[key]
