"""What the plugins do once the workload runs, and before it is ended."""

from __future__ import annotations

import asyncio
import logging

from ai.backend.agent.services.kernel import Kernel
from ai.backend.agent.services.kernel_lifecycle.context import Circumstances, Surroundings
from ai.backend.agent.services.kernel_lifecycle.steps.hooks import HookCalls
from ai.backend.common.errors import BackendError
from ai.backend.plugin.accelerator import TerminationDeferred

log = logging.getLogger(__name__)


class PostCreate:
    """``post_create`` of every hooked plugin; released by ``pre_terminate`` in reverse, which may ask for time."""

    name = "post-create"

    def __init__(self, around: Surroundings, calls: HookCalls) -> None:
        self._around = around
        self._calls = calls

    async def acquire(self, kernel: Kernel, why: Circumstances) -> None:
        for key in kernel.record.hooked:
            for attempt in range(2):
                try:
                    await self._calls.call(key, "post_create", kernel, why.cause)
                    break
                except BackendError as e:
                    log.warning("post_create of %s for kernel %s failed (%d): %s", key, kernel.id, attempt + 1, e)

    async def release(self, kernel: Kernel, why: Circumstances) -> None:
        deadline = asyncio.get_running_loop().time() + self._around.settings.kernel_lifecycles.termination_deferral
        for key in reversed(kernel.record.hooked):
            await self._pre_terminate(key, kernel, why, deadline)

    async def _pre_terminate(self, key: str, kernel: Kernel, why: Circumstances, deadline: float) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            try:
                await self._calls.call(key, "pre_terminate", kernel, why.cause)
                return
            except TerminationDeferred as e:
                left = deadline - clock()
                if kernel.hurry.is_set() or left <= 0:
                    log.warning("%s still defers the end of kernel %s; it goes on: %s", key, kernel.id, e)
                    return
                try:
                    async with asyncio.timeout(min(max(e.retry_after, 0.01), left)):
                        await kernel.hurry.wait()
                except TimeoutError:
                    continue
            except BackendError as e:
                log.warning("pre_terminate of %s for kernel %s failed: %s", key, kernel.id, e)
                return
