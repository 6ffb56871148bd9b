"""The private network of a cluster session."""

from __future__ import annotations

from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.lifecycle.context import AgentContext, StepContext


class Network:
    """Join it before the workload is made, and leave it when nothing of the workload is left."""

    name = "network"

    def __init__(self, around: AgentContext) -> None:
        self._around = around

    async def acquire(self, kernel: Kernel, why: StepContext) -> None:
        kernel.network = await self._around.networks.join(kernel.record)

    async def release(self, kernel: Kernel, why: StepContext) -> None:
        if not why.restarting:  # the next attempt has its place, and its address, again
            await self._around.networks.leave(kernel.record)
