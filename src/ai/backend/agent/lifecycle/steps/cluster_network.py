"""The step that joins the private network of a cluster session."""

from __future__ import annotations

from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.lifecycle.context import AgentContext, StepContext


class Network:
    """Joins the network before the workload is created, and leaves it after the workload was removed."""

    name = "network"

    def __init__(self, context: AgentContext) -> None:
        self._context = context

    async def acquire(self, kernel: Kernel, step: StepContext) -> None:
        kernel.network = await self._context.networks.join(kernel.record)

    async def release(self, kernel: Kernel, step: StepContext) -> None:
        if not step.restarting:  # the next attempt uses the same address
            await self._context.networks.leave(kernel.record)
