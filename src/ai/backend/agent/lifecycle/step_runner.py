"""Takes the steps of a kernel in order, and takes them back in reverse order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from ai.backend.agent.crash_points import CREATE_STEPS
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.lifecycle.context import AgentContext, Step, StepContext
from ai.backend.agent.lifecycle.hook_calls import HookCalls
from ai.backend.agent.lifecycle.hook_retries import HookRetrier
from ai.backend.agent.lifecycle.steps.bootstrap import Bootstrap
from ai.backend.agent.lifecycle.steps.channel import Channel
from ai.backend.agent.lifecycle.steps.devices import Devices
from ai.backend.agent.lifecycle.steps.hooks import Hooks
from ai.backend.agent.lifecycle.steps.network import Network
from ai.backend.agent.lifecycle.steps.post_create import PostCreate
from ai.backend.agent.lifecycle.steps.workload import CreateWorkload
from ai.backend.plugin.crash_points import crash_point

log = logging.getLogger(__name__)
_RETRY_FIRST_S, _RETRY_MAX_S = 0.2, 10.0


class StepRunner:
    """The steps, with the record written before each and a crash point on either side."""

    def __init__(self, around: AgentContext) -> None:
        calls = HookCalls(around)
        self.aftercare = HookRetrier(around, calls)
        self.devices = Devices(around)
        self.channel = Channel(around)
        self.steps: Sequence[Step] = (
            self.devices,
            Hooks(around, calls, self.aftercare),
            Network(around),
            CreateWorkload(around),
            self.channel,
            Bootstrap(around),
            PostCreate(around, calls, self.aftercare),
        )
        assert tuple(step.name for step in self.steps) == CREATE_STEPS

    async def acquire_all(self, kernel: Kernel, why: StepContext) -> None:
        """Raises what a step raises; what was acquired stays for :meth:`release_all`."""
        for step in self.steps:
            kernel.save(step=step.name)
            crash_point(f"create.{step.name}.before")
            await step.acquire(kernel, why)
            crash_point(f"create.{step.name}.after")

    async def release_all(self, kernel: Kernel, why: StepContext) -> None:
        """Release every step, acquired or not. One that fails is tried until it succeeds: nothing stays behind."""
        for step in reversed(self.steps):
            if not why.restarting:
                crash_point(f"destroy.{step.name}.before")
            await self._release(step, kernel, why)
            if not why.restarting:
                crash_point(f"destroy.{step.name}.after")

    @staticmethod
    async def _release(step: Step, kernel: Kernel, why: StepContext) -> None:
        delay_s = _RETRY_FIRST_S
        while True:
            try:
                return await step.release(kernel, why)
            except Exception:
                log.exception("the step %s of kernel %s cannot be released; trying again", step.name, kernel.id)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, _RETRY_MAX_S)
