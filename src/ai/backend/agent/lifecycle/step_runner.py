"""Acquires the steps of a kernel in order and releases them in reverse order."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.lifecycle.context import AgentContext, Step, StepContext
from ai.backend.agent.lifecycle.hook_calls import HookCalls
from ai.backend.agent.lifecycle.hook_retries import HookRetrier
from ai.backend.agent.lifecycle.steps.channel import Bootstrap, Channel, CloseRoutes
from ai.backend.agent.lifecycle.steps.hooks import Hooks, PostCreate
from ai.backend.agent.lifecycle.steps.workload import CreateWorkload, Devices, Network
from ai.backend.infra.retry import Backoff
from ai.backend.infra.telemetry.tracing import child_span
from ai.backend.plugin.crash_points import crash_point

CREATE_STEPS = ("devices", "hooks", "network", "workload", "channel", "bootstrap", "post-create", "routes")
"""Names of the creation's steps in order; a destruction releases them in reverse."""

KERNEL_CRASH_POINTS: tuple[str, ...] = (
    "create.accept.before",
    "create.accept.after",
    *(f"create.{step}.{when}" for step in CREATE_STEPS for when in ("before", "after")),
    "create.running.before",
    "create.running.after",
    "restart.accept.after",
    "restart.released",
    "destroy.accept.before",
    "destroy.accept.after",
    *(f"destroy.{step}.{when}" for step in reversed(CREATE_STEPS) for when in ("before", "after")),
    "destroy.terminated.before",
    "destroy.terminated.after",
)
IMAGE_CRASH_POINTS = ("create.image.before", "create.image.after")
"""The crash points of a kernel whose image must be pulled."""
CRASH_POINTS = (*KERNEL_CRASH_POINTS, *IMAGE_CRASH_POINTS)


log = logging.getLogger(__name__)
_RETRY_FIRST_S, _RETRY_MAX_S = 0.2, 10.0


class StepRunner:
    """Runs a kernel's creation steps, with crash points around each."""

    def __init__(self, context: AgentContext) -> None:
        calls = HookCalls(context)
        self.hook_retrier = HookRetrier(context, calls)
        self.devices = Devices(context)
        self.channel = Channel(context)
        self.steps: Sequence[Step] = (
            self.devices,
            Hooks(context, calls, self.hook_retrier),
            Network(context),
            CreateWorkload(context),
            self.channel,
            Bootstrap(context),
            PostCreate(context, calls, self.hook_retrier),
            CloseRoutes(context),
        )
        assert tuple(step.name for step in self.steps) == CREATE_STEPS

    async def acquire_all(self, kernel: Kernel, step: StepContext) -> None:
        """Acquires every step. Raises a step's error; :meth:`release_all` then releases the acquired steps."""
        for kernel_step in self.steps:
            crash_point(f"create.{kernel_step.name}.before")
            with child_span(f"acquire {kernel_step.name}"):
                await kernel_step.acquire(kernel, step)
            crash_point(f"create.{kernel_step.name}.after")

    async def release_all(self, kernel: Kernel, step: StepContext) -> None:
        """Releases every step, acquired or not. A release that fails is repeated until it succeeds."""
        for kernel_step in reversed(self.steps):
            if not step.restarting:
                crash_point(f"destroy.{kernel_step.name}.before")
            with child_span(f"release {kernel_step.name}"):
                await self._release(kernel_step, kernel, step)
            if not step.restarting:
                crash_point(f"destroy.{kernel_step.name}.after")

    @staticmethod
    async def _release(kernel_step: Step, kernel: Kernel, step: StepContext) -> None:
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        while True:
            try:
                return await kernel_step.release(kernel, step)
            except Exception:  # giving up would lose what the step holds
                log.exception("the step %s of kernel %s cannot be released; trying again", kernel_step.name, kernel.id)
            await backoff.wait()
