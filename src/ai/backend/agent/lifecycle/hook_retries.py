"""Hook calls that have failed and are repeated in the background, ever more rarely, for a bounded time.

``post_create`` of a kernel that runs without it is owed by the kernel's own record. ``post_terminate`` of a workload
whose devices were given back is owed by a leftover: a copy of the kernel's record, kept beside the others until nothing
is owed any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.lifecycle.context import AgentContext, circumstances_of
from ai.backend.agent.lifecycle.hook_calls import HookCalls, Method
from ai.backend.common.errors import BackendError, CreationDeferred
from ai.backend.core.lifecycle.kernel_phase import Phase

log = logging.getLogger(__name__)
_FIRST_S, _MAX_S = 0.5, 300.0


class HookRetrier:
    """Owes calls: those of live kernels while they run, those of leftovers until they are done or given up."""

    def __init__(self, around: AgentContext, calls: HookCalls) -> None:
        self._around = around
        self._calls = calls
        self._tasks: dict[Kernel, asyncio.Task[None]] = {}
        self._leftovers: dict[tuple[str, int], Kernel] = {}

    # ---- post_create of a running kernel

    def follow(self, kernel: Kernel) -> None:
        """Begin to repeat what the kernel owes, if anything."""
        if kernel.record.owed and kernel.owing_since is None:
            owing_s = max(0.0, self._around.wall_clock() - kernel.record.owed_since)
            kernel.owing_since = asyncio.get_running_loop().time() - owing_s
        if kernel.record.owed and kernel not in self._tasks:
            task = asyncio.create_task(self._repeat(kernel), name=f"aftercare-{kernel.id}")
            self._tasks[kernel] = task
            task.add_done_callback(lambda done: self._ended(kernel, done))

    async def unfollow(self, kernel: Kernel) -> None:
        """End that, also in the middle of a call; nothing is owed afterwards."""
        task = self._tasks.get(kernel)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        if kernel.record.owed:
            kernel.save(owed=[])

    # ---- post_terminate of a workload that is gone

    def restore(self) -> None:
        """Go on with the leftovers of an earlier life of the agent."""
        for record in self._around.leftovers.load():
            if not record.owed:  # it could not be removed from a full disk
                self._around.leftovers.forget(record)
                continue
            kernel = Kernel(record, self._around.leftovers)
            self._leftovers[kernel.id, record.standing_attempt] = kernel
            self.follow(kernel)

    def leave(self, kernel: Kernel, key: str) -> None:
        """Take over a plugin's ``post_terminate``; written before the kernel's own record forgets it."""
        record = kernel.record
        name = (kernel.id, record.standing_attempt)
        left = self._leftovers.get(name)
        if left is None:
            record = msgspec.structs.replace(record, phase=Phase.ENDED, owed=[], owed_since=self._around.wall_clock())
            left = self._leftovers[name] = Kernel(record, self._around.leftovers)
        left.save(
            owed=[*left.record.owed, key],
            states={**left.record.states, **kernel.record.states},
            begun={**left.record.begun, **kernel.record.begun},
        )
        self.follow(left)

    def owes(self, kernel: Kernel, key: str) -> bool:
        """Whether this ``post_terminate`` was taken over already; a crash may come between that and the record."""
        left = self._leftovers.get((kernel.id, kernel.record.standing_attempt))
        return left is not None and key in left.record.owed

    async def settle(self, kernel: Kernel, keys: Sequence[str]) -> None:
        """Before a new attempt: try once more what earlier attempts of the kernel have left of these plugins.

        Raises:
            CreationDeferred: something is still left; a newer attempt must not begin before.
        """
        for (kernel_id, attempt), left in list(self._leftovers.items()):
            if kernel_id != kernel.id or attempt >= kernel.record.standing_attempt:
                continue
            mine = [key for key in left.record.owed if key in keys]
            if not mine:
                continue
            await self._pause(left)
            try:
                for key in mine:
                    await self._try(left, key)
            finally:
                self.follow(left)
            if still := [key for key in left.record.owed if key in keys]:
                raise CreationDeferred(
                    f"the plugin {' and '.join(still)} has not finished with attempt {attempt} of this kernel",
                    retry_after=_FIRST_S * 10,
                )

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- inside

    async def _pause(self, kernel: Kernel) -> None:
        task = self._tasks.get(kernel)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            self._tasks.pop(kernel, None)

    async def _repeat(self, kernel: Kernel) -> None:
        delay_s = _FIRST_S
        while kernel.record.owed:
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _MAX_S)
            for key in list(kernel.record.owed):
                try:
                    await self._try(kernel, key)
                except OSError as e:  # the call is made again: hooks are idempotent
                    log.warning("what became of %s for kernel %s cannot be written: %s", key, kernel.id, e)

    async def _try(self, kernel: Kernel, key: str) -> None:
        """One more call; afterwards it is done, given up, or still owed."""
        record = kernel.record
        method: Method = "post_create" if record.phase is not Phase.ENDED else "post_terminate"
        why = circumstances_of(record)
        try:
            await self._calls.call(key, method, kernel, why)
        except BackendError as e:
            limit_s, now = self._around.settings.kernel_lifecycles.hook_retry_limit, asyncio.get_running_loop().time()
            if kernel.owing_since is None or now - kernel.owing_since < limit_s:
                log.info("%s of %s for kernel %s failed again: %s", method, key, kernel.id, e)
                return
            self._calls.tell(kernel, key, method, e, "given-up", record.owed_since)
        else:
            self._calls.tell(kernel, key, method, "it has succeeded", "done", record.owed_since)
        kernel.save(owed=[other for other in kernel.record.owed if other != key])
        if kernel.phase is Phase.ENDED and not kernel.record.owed:
            self._around.leftovers.forget(kernel.record)
            self._leftovers.pop((kernel.id, record.standing_attempt), None)

    def _ended(self, kernel: Kernel, task: asyncio.Task[None]) -> None:
        if self._tasks.get(kernel) is task:
            del self._tasks[kernel]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)
