"""The step that calls the plugins' hooks once the workload runs and before it is ended."""

from __future__ import annotations

import asyncio

from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.lifecycle.context import AgentContext, StepContext
from ai.backend.agent.lifecycle.hook_calls import HookCalls
from ai.backend.agent.lifecycle.hook_retries import HookRetrier
from ai.backend.common.errors import BackendError
from ai.backend.plugin.accelerator import TerminationDeferred


class PostCreate:
    """Calls ``post_create`` of every hooked plugin; releases by ``pre_terminate`` in reverse, which may be deferred."""

    name = "post-create"

    def __init__(self, context: AgentContext, calls: HookCalls, hook_retrier: HookRetrier) -> None:
        self._context = context
        self._calls = calls
        self._hook_retrier = hook_retrier

    async def acquire(self, kernel: Kernel, step: StepContext) -> None:
        for key in kernel.record.hooked:
            try:
                await self._calls.call(key, "post_create", kernel, step)
            except BackendError as e:
                now = self._context.wall_clock()
                kernel.save(owed=list(dict.fromkeys([*kernel.record.owed, key])), owed_since=now)
                kernel.owing_since = None
                self._calls.report(kernel, key, "post_create", e, "retrying", now)
        self._hook_retrier.follow(kernel)

    async def release(self, kernel: Kernel, step: StepContext) -> None:
        await self._hook_retrier.unfollow(kernel)
        for key in reversed(kernel.record.hooked):
            begun = kernel.record.begun.get(key, {})
            if "post_create" in begun and "post_terminate" not in begun:
                await self._pre_terminate(key, kernel, step)

    async def _pre_terminate(self, key: str, kernel: Kernel, step: StepContext) -> None:
        while True:
            try:
                await self._calls.call(key, "pre_terminate", kernel, step)
                return
            except TerminationDeferred as e:
                if not await self._wait(kernel, e.retry_after):
                    if not kernel.hurry.is_set():
                        problem = str(e) or "it still defers the termination"
                        self._calls.report(kernel, key, "pre_terminate", problem, "overrun")
                    return
            except BackendError as e:
                self._calls.report(kernel, key, "pre_terminate", e, "given-up")
                return

    async def _wait(self, kernel: Kernel, retry_after_s: float) -> bool:
        """Wait until the next call, at most until the deadline, and return whether there is a next call.

        The deadline is recorded in wall-clock time, so that a restart of the agent does not move it. It is read once
        after each start of the agent, so that setting the wall clock does not move it either.
        """
        now, limit_s = self._context.wall_clock(), self._context.settings.kernel_lifecycles.termination_deferral
        clock = asyncio.get_running_loop().time
        if kernel.record.deferred_until is None:
            kernel.save(deferred_until=now + limit_s)
            kernel.deferral_ends = clock() + limit_s
        if kernel.deferral_ends is None:
            kernel.deferral_ends = clock() + min((kernel.record.deferred_until or now) - now, limit_s)
        remaining_s = kernel.deferral_ends - clock()
        if kernel.hurry.is_set() or remaining_s <= 0:
            return False
        try:
            async with asyncio.timeout(min(max(0.01, retry_after_s), remaining_s)):
                await kernel.hurry.wait()
        except TimeoutError:
            return True
        return False
