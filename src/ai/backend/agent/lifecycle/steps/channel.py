"""The way to the runner inside the workload, and what lives on it: runs and terminals."""

from __future__ import annotations

import asyncio
from functools import partial

from ai.backend.agent.channel.channel import KernelChannel
from ai.backend.agent.channel.model import RunsRecord
from ai.backend.agent.channel.runs import RunQueue
from ai.backend.agent.channel.terminals import Terminals
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.lifecycle.context import AgentContext, StepContext
from ai.backend.common.errors import Unavailable
from ai.backend.plugin.runtime import AbstractRuntime, RunnerChannel, WorkloadKey, WorkloadState

_CONNECT_RETRY_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

_REQUESTS_PER_EPOCH = 1 << 24
"""Request numbers of different lives of the agent must differ: old answers are replayed."""


class Channel:
    """Open the channel and wait until the runner is ready; released by letting go of it."""

    name = "channel"

    def __init__(self, around: AgentContext) -> None:
        self._around = around

    async def acquire(self, kernel: Kernel, why: StepContext) -> None:
        restored = self._around.records.load_runs(kernel.id)
        if kernel.channel is None:
            await self._open_soon(kernel, restored)
        assert kernel.channel is not None
        assert kernel.runs is not None
        if not kernel.record.ready:
            await kernel.channel.wait_ready(self._around.settings.kernel_lifecycles.ready_timeout)
            kernel.save(ready=True)
        if restored is not None:
            await kernel.runs.reconcile()

    async def _open_soon(self, kernel: Kernel, restored: RunsRecord | None) -> None:
        """A runner that has only just been started may need a moment to listen."""
        for delay_s in _CONNECT_RETRY_S:
            try:
                return await self.open(kernel, restored)
            except Unavailable:
                view = await self._around.runtime.inspect(kernel.key)
                if view is None or view.state is not WorkloadState.RUNNING:
                    raise
            await asyncio.sleep(delay_s)
        return await self.open(kernel, restored)

    async def open(self, kernel: Kernel, restored: RunsRecord | None) -> None:
        """Connect, with the runs of an earlier life if there are any."""
        epoch = self._around.epoch

        last_seq = restored.acked if restored is not None and restored.attempt == kernel.attempt else 0
        channel = KernelChannel(
            _Opener(self._around.runtime, kernel.key, epoch),
            last_seq=last_seq,
            first_request=epoch * _REQUESTS_PER_EPOCH,
        )
        limits = self._around.settings.runs
        runs = RunQueue(
            channel,
            attempt=kernel.attempt,
            settings=limits,
            exec_timeout_s=kernel.record.spec.exec_timeout_s or limits.exec_timeout,
            save=partial(self._around.records.put_runs, kernel.id),
            restored=restored,
            wall_clock=self._around.wall_clock,
        )
        terminals = Terminals(channel, prefix=f"e{epoch}")
        await channel.connect()
        kernel.channel, kernel.runs, kernel.terminals = channel, runs, terminals
        kernel.changed.set()

    async def release(self, kernel: Kernel, why: StepContext) -> None:
        if kernel.runs is not None:
            kernel.runs.on_exit({"reason": "the session is being ended"})
            kernel.runs.close()
        if kernel.terminals is not None:
            kernel.terminals.close()
        if kernel.channel is not None:
            await kernel.channel.close()
        kernel.channel = kernel.runs = kernel.terminals = None


class _Opener:
    """Opens the channel of one workload; a closure would be five objects."""

    __slots__ = ("_epoch", "_key", "_runtime")

    def __init__(self, runtime: AbstractRuntime, key: WorkloadKey, epoch: int) -> None:
        self._runtime = runtime
        self._key = key
        self._epoch = epoch

    async def __call__(self, last_seq: int) -> RunnerChannel:
        return await self._runtime.open_channel(self._key, epoch=self._epoch, last_seq=last_seq)
