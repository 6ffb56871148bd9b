"""Repeats failed hook calls in the background with growing delays, for a bounded time.

A failed ``post_create`` is recorded in the kernel's record; a failed ``post_terminate`` in a leftover, a copy of the
record that is stored until every call has succeeded or was given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.lifecycle.context import AgentContext, step_context_of
from ai.backend.agent.lifecycle.hook_calls import HookCalls, Method
from ai.backend.common.errors import BackendError, CreationDeferred
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.kernel_phase import Phase
from ai.backend.infra.retry import Backoff

log = logging.getLogger(__name__)
_RETRY_FIRST_S, _RETRY_MAX_S = 0.5, 300.0


class HookRetrier:
    """Repeats failed hook calls. Calls of live kernels are repeated while the kernel runs, calls of leftovers until
    they succeed or their time is over.
    """

    def __init__(self, context: AgentContext, calls: HookCalls) -> None:
        self._context = context
        self._calls = calls
        self._tasks: dict[Kernel, asyncio.Task[None]] = {}
        self._leftovers: dict[tuple[str, int], Kernel] = {}

    def start_repeating(self, kernel: Kernel) -> None:
        """Starts to repeat the kernel's failed hook calls, if any."""
        if kernel.record.owed and kernel.hooks_owed_since is None:
            owing_s = max(0.0, self._context.wall_clock() - kernel.record.owed_since)
            kernel.hooks_owed_since = asyncio.get_running_loop().time() - owing_s
        if kernel.record.owed and kernel not in self._tasks:
            task = asyncio.create_task(self._repeat(kernel), name=f"aftercare-{kernel.id}")
            self._tasks[kernel] = task
            task.add_done_callback(lambda done: self._on_task_end(kernel, done))

    async def stop_repeating(self, kernel: Kernel) -> None:
        """Stops repeating a kernel's failed hook calls, even in the middle of a call, and drops the calls."""
        await self._cancel_repeats(kernel)
        if kernel.record.owed:
            kernel.save(owed=[])

    def restore(self) -> None:
        """Resumes the leftovers that were stored before the agent was restarted."""
        for record in self._context.leftovers.load():
            if not record.owed:  # it could not be removed from a full disk
                self._context.leftovers.forget(record)
                continue
            kernel = Kernel(record, self._context.leftovers)
            self._leftovers[kernel.id, record.standing_attempt] = kernel
            self.start_repeating(kernel)

    def add_leftover(self, kernel: Kernel, plugin_key: str) -> None:
        """Stores a removed workload's failed ``post_terminate`` as a leftover, and repeats the call.

        The leftover is stored before the kernel's record drops the call.
        """
        record = kernel.record
        leftover_key = (kernel.id, record.standing_attempt)
        leftover = self._leftovers.get(leftover_key)
        if leftover is None:
            record = replace(record, phase=Phase.ENDED, owed=[], owed_since=self._context.wall_clock())
            leftover = self._leftovers[leftover_key] = Kernel(record, self._context.leftovers)
        leftover.save(
            owed=[*leftover.record.owed, plugin_key],
            states={**leftover.record.states, **kernel.record.states},
            begun={**leftover.record.begun, **kernel.record.begun},
        )
        self.start_repeating(leftover)

    def owes(self, kernel: Kernel, plugin_key: str) -> bool:
        """Returns True if a leftover of the kernel's attempt must still call the plugin's ``post_terminate``.

        This is so, for example, after a crash in :meth:`add_leftover`.
        """
        leftover = self._leftovers.get((kernel.id, kernel.record.standing_attempt))
        return leftover is not None and plugin_key in leftover.record.owed

    async def complete_earlier_attempts(self, kernel: Kernel, keys: Sequence[str]) -> None:
        """Repeats plugins' failed hook calls for earlier attempts. Raises CreationDeferred if a call fails again."""
        for (kernel_id, attempt), leftover in list(self._leftovers.items()):
            if kernel_id != kernel.id or attempt >= kernel.record.standing_attempt:
                continue
            own_keys = [key for key in leftover.record.owed if key in keys]
            if not own_keys:
                continue
            await self._cancel_repeats(leftover)
            try:
                for key in own_keys:
                    await self._call_again(leftover, key)
            finally:
                self.start_repeating(leftover)
            if failed_keys := [key for key in leftover.record.owed if key in keys]:
                raise CreationDeferred(
                    f"the plugin {' and '.join(failed_keys)} has not finished with attempt {attempt} of this kernel",
                    retry_after=_RETRY_FIRST_S * 10,
                )

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _cancel_repeats(self, kernel: Kernel) -> None:
        task = self._tasks.get(kernel)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            self._tasks.pop(kernel, None)

    async def _repeat(self, kernel: Kernel) -> None:
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        while kernel.record.owed:
            await backoff.wait()
            for key in list(kernel.record.owed):
                try:
                    await self._call_again(kernel, key)
                except OSError as e:  # the call is made again: hooks are idempotent
                    log.warning("the outcome of %s for kernel %s cannot be stored: %s", key, kernel.id, e)

    async def _call_again(self, kernel: Kernel, plugin_key: str) -> None:
        """Repeats a failed hook call once, and drops the call on success or after the time limit."""
        record = kernel.record
        method: Method = "post_create" if record.phase is not Phase.ENDED else "post_terminate"
        step = step_context_of(record)
        try:
            await self._calls.call(plugin_key, method, kernel, step)
        except BackendError as e:
            limit_s, now = self._context.settings.kernel_lifecycles.hook_retry_limit, asyncio.get_running_loop().time()
            if kernel.hooks_owed_since is None or now - kernel.hooks_owed_since < limit_s:
                log.info("%s of %s for kernel %s failed again: %s", method, plugin_key, kernel.id, e)
                return
            self._calls.report(kernel, plugin_key, method, e, "given-up", record.owed_since)
        else:
            self._calls.report(kernel, plugin_key, method, "it has succeeded", "done", record.owed_since)
        kernel.save(owed=[other_key for other_key in kernel.record.owed if other_key != plugin_key])
        if kernel.phase is Phase.ENDED and not kernel.record.owed:
            self._context.leftovers.forget(kernel.record)
            self._leftovers.pop((kernel.id, record.standing_attempt), None)

    def _on_task_end(self, kernel: Kernel, task: asyncio.Task[None]) -> None:
        if self._tasks.get(kernel) is task:
            del self._tasks[kernel]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)
