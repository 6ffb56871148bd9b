"""What the plugins do once the workload runs, and before it is ended."""

from __future__ import annotations

import asyncio

from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.lifecycle.context import AgentContext, StepContext
from ai.backend.agent.lifecycle.hook_calls import HookCalls
from ai.backend.agent.lifecycle.hook_retries import HookRetrier
from ai.backend.common.errors import BackendError
from ai.backend.plugin.accelerator import TerminationDeferred


class PostCreate:
    """``post_create`` of every hooked plugin; released by ``pre_terminate`` in reverse, which may ask for time."""

    name = "post-create"

    def __init__(self, around: AgentContext, calls: HookCalls, aftercare: HookRetrier) -> None:
        self._around = around
        self._calls = calls
        self._aftercare = aftercare

    async def acquire(self, kernel: Kernel, why: StepContext) -> None:
        for key in kernel.record.hooked:
            try:
                await self._calls.call(key, "post_create", kernel, why)
            except BackendError as e:
                now = self._around.wall_clock()
                kernel.save(owed=list(dict.fromkeys([*kernel.record.owed, key])), owed_since=now)
                kernel.owing_since = None
                self._calls.tell(kernel, key, "post_create", e, "retrying", now)
        self._aftercare.follow(kernel)

    async def release(self, kernel: Kernel, why: StepContext) -> None:
        await self._aftercare.unfollow(kernel)
        for key in reversed(kernel.record.hooked):
            begun = kernel.record.begun.get(key, {})
            if "post_create" in begun and "post_terminate" not in begun:
                await self._pre_terminate(key, kernel, why)

    async def _pre_terminate(self, key: str, kernel: Kernel, why: StepContext) -> None:
        while True:
            try:
                await self._calls.call(key, "pre_terminate", kernel, why)
                return
            except TerminationDeferred as e:
                if not await self._wait(kernel, e.retry_after):
                    if not kernel.hurry.is_set():
                        problem = str(e) or "it still defers the termination"
                        self._calls.tell(kernel, key, "pre_terminate", problem, "overrun")
                    return
            except BackendError as e:
                self._calls.tell(kernel, key, "pre_terminate", e, "given-up")
                return

    async def _wait(self, kernel: Kernel, retry_after_s: float) -> bool:
        """Until the next call, which is at the deadline at the latest; False where there is no next one.

        The deadline is of the wall clock and in the record, so that no restart of the agent moves it. In one life of
        the agent it is read once: a wall clock that is set meanwhile moves nothing either.
        """
        now, limit_s = self._around.wall_clock(), self._around.settings.kernel_lifecycles.termination_deferral
        clock = asyncio.get_running_loop().time
        if kernel.record.deferred_until is None:
            kernel.save(deferred_until=now + limit_s)
            kernel.deferral_ends = clock() + limit_s
        if kernel.deferral_ends is None:
            kernel.deferral_ends = clock() + min((kernel.record.deferred_until or now) - now, limit_s)
        left_s = kernel.deferral_ends - clock()
        if kernel.hurry.is_set() or left_s <= 0:
            return False
        try:
            async with asyncio.timeout(min(max(0.01, retry_after_s), left_s)):
                await kernel.hurry.wait()
        except TimeoutError:
            return True
        return False
