"""The kernel's share of the node's devices."""

from __future__ import annotations

import msgspec

from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.kernels.model import read_allocation, write_allocation
from ai.backend.agent.lifecycle.context import AgentContext, StepContext
from ai.backend.common.devices import VariantProperty
from ai.backend.common.errors import CreationDeferred
from ai.backend.common.slots import ResourceSlot


class Devices:
    """Taken when the command is accepted, since a refusal must come at once; here it is made sure after a crash."""

    name = "devices"

    def __init__(self, around: AgentContext) -> None:
        self._around = around

    def bind(self, kernel: Kernel) -> None:
        """Take the planned devices, or equivalent ones; nothing is taken if it raises a ResourceError."""
        spec = kernel.record.spec
        self._around.inventory.bind(
            kernel.id,
            ResourceSlot.parse(dict(spec.slots)),
            read_allocation(spec.devices),
            spec.generation,
            [VariantProperty.parse(text) for text in spec.variant_requirements],
        )
        allocation = self._around.inventory.holding(kernel.id)
        kernel.record = msgspec.structs.replace(kernel.record, allocation=write_allocation(allocation))

    async def acquire(self, kernel: Kernel, why: StepContext) -> None:
        """Raises CreationDeferred where a device has failed since it was taken: another one may be had."""
        if not self._around.inventory.holds(kernel.id):
            self._around.inventory.adopt(kernel.id, kernel.record.device_allocation)
        if not why.restarting and (failed := self._around.inventory.unhealthy(kernel.id)):
            names = ", ".join(f"{d.device_id} ({d.reason})" if d.reason else d.device_id for d in failed)
            raise CreationDeferred(f"devices have failed before the kernel was created: {names}")

    async def release(self, kernel: Kernel, why: StepContext) -> None:
        if not why.restarting:
            self._around.inventory.free(kernel.id)
