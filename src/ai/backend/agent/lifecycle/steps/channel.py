"""The step that connects to the runner inside the workload and creates its runs and terminals."""

from __future__ import annotations

from functools import partial

from ai.backend.agent.channel.channel import KernelChannel
from ai.backend.agent.channel.model import RunsRecord
from ai.backend.agent.channel.runs import RunQueue
from ai.backend.agent.channel.terminals import Terminals
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.lifecycle.context import AgentContext, StepContext
from ai.backend.common.errors import Unavailable
from ai.backend.infra.retry import Backoff
from ai.backend.plugin.runtime import AbstractRuntime, RunnerChannel, WorkloadKey, WorkloadState

_CONNECT_RETRIES = 7
_CONNECT_FIRST_S, _CONNECT_MAX_S = 0.02, 1.0
_REQUESTS_PER_EPOCH = 1 << 24
"""Request numbers must differ after each start of the agent, because old replies are replayed."""


class Channel:
    """Opens the channel and waits until the runner is ready; releases by closing the channel."""

    name = "channel"

    def __init__(self, context: AgentContext) -> None:
        self._context = context

    async def acquire(self, kernel: Kernel, step: StepContext) -> None:
        restored = self._context.records.load_runs(kernel.id)
        if kernel.channel is None:
            await self._open_with_retries(kernel, restored)
        assert kernel.channel is not None
        assert kernel.runs is not None
        if not kernel.record.ready:
            await kernel.channel.wait_ready(self._context.settings.kernel_lifecycles.ready_timeout)
            kernel.save(ready=True)
        if restored is not None:
            await kernel.runs.reconcile()

    async def _open_with_retries(self, kernel: Kernel, restored: RunsRecord | None) -> None:
        """Connect, with retries because a runner that was just started may not listen yet."""
        backoff = Backoff(_CONNECT_FIRST_S, _CONNECT_MAX_S)
        for _ in range(_CONNECT_RETRIES):
            try:
                return await self.open(kernel, restored)
            except Unavailable:
                view = await self._context.runtime.inspect(kernel.key)
                if view is None or view.state is not WorkloadState.RUNNING:
                    raise
            await backoff.wait()
        return await self.open(kernel, restored)

    async def open(self, kernel: Kernel, restored: RunsRecord | None) -> None:
        """Connect, and restore the runs that were recorded before the agent was restarted."""
        epoch = self._context.epoch
        last_seq = restored.acked if restored is not None and restored.attempt == kernel.attempt else 0
        channel = KernelChannel(
            _Opener(self._context.runtime, kernel.key, epoch),
            last_seq=last_seq,
            first_request=epoch * _REQUESTS_PER_EPOCH,
        )
        limits = self._context.settings.runs
        runs = RunQueue(
            channel,
            attempt=kernel.attempt,
            settings=limits,
            exec_timeout_s=kernel.record.spec.exec_timeout_s or limits.exec_timeout,
            save=partial(self._context.records.put_runs, kernel.id),
            restored=restored,
            wall_clock=self._context.wall_clock,
        )
        terminals = Terminals(channel, prefix=f"e{epoch}")
        await channel.connect()
        kernel.channel, kernel.runs, kernel.terminals = channel, runs, terminals
        kernel.changed.set()

    async def release(self, kernel: Kernel, step: StepContext) -> None:
        if kernel.runs is not None:
            kernel.runs.on_exit({"reason": "the session is being ended"})
            kernel.runs.close()
        if kernel.terminals is not None:
            kernel.terminals.close()
        if kernel.channel is not None:
            await kernel.channel.close()
        kernel.channel = kernel.runs = kernel.terminals = None


class _Opener:
    """Opens the channel of one workload. A closure would need five objects for each kernel."""

    __slots__ = ("_epoch", "_key", "_runtime")

    def __init__(self, runtime: AbstractRuntime, key: WorkloadKey, epoch: int) -> None:
        self._runtime = runtime
        self._key = key
        self._epoch = epoch

    async def __call__(self, last_seq: int) -> RunnerChannel:
        return await self._runtime.open_channel(self._key, epoch=self._epoch, last_seq=last_seq)
