"""The step that ends the routes to a kernel's services."""

from __future__ import annotations

from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.lifecycle.context import Step, StepContext


class CloseRoutes(Step):
    """Closes the routes of a kernel before anything else of it is released. Routes outlast a restart in place."""

    name = "routes"

    async def release(self, kernel: Kernel, step: StepContext) -> None:
        gateway = self.context.gateway
        (gateway.cut_kernel if step.restarting else gateway.end_kernel)(kernel.id)

    async def acquire(self, kernel: Kernel, step: StepContext) -> None:
        """Does nothing: routes are opened while the kernel runs."""
