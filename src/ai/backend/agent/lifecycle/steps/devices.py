"""The step that holds the kernel's devices."""

from __future__ import annotations

import msgspec

from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.kernels.model import read_allocation, write_allocation
from ai.backend.agent.lifecycle.context import AgentContext, StepContext
from ai.backend.common.devices import VariantProperty
from ai.backend.common.errors import CreationDeferred
from ai.backend.common.slots import ResourceSlot


class Devices:
    """Holds the devices. They are bound when the command is accepted, so that it can be refused at once."""

    name = "devices"

    def __init__(self, context: AgentContext) -> None:
        self._context = context

    def bind(self, kernel: Kernel) -> None:
        """Take the planned devices or equivalent ones. Raises ResourceError and takes nothing if there are none."""
        spec = kernel.record.spec
        self._context.inventory.bind(
            kernel.id,
            ResourceSlot.parse(dict(spec.slots)),
            read_allocation(spec.devices),
            spec.generation,
            [VariantProperty.parse(text) for text in spec.variant_requirements],
        )
        allocation = self._context.inventory.holding(kernel.id)
        kernel.record = msgspec.structs.replace(kernel.record, allocation=write_allocation(allocation))

    async def acquire(self, kernel: Kernel, step: StepContext) -> None:
        """Take the recorded devices again after a crash. Raises CreationDeferred if a device has failed meanwhile."""
        if not self._context.inventory.holds(kernel.id):
            self._context.inventory.adopt(kernel.id, kernel.record.device_allocation)
        if not step.restarting and (failed := self._context.inventory.unhealthy(kernel.id)):
            names = ", ".join(f"{d.device_id} ({d.reason})" if d.reason else d.device_id for d in failed)
            raise CreationDeferred(f"devices have failed before the kernel was created: {names}")

    async def release(self, kernel: Kernel, step: StepContext) -> None:
        if not step.restarting:
            self._context.inventory.free(kernel.id)
