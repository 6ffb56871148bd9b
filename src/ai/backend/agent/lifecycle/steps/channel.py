"""The steps that connect to the runner inside the workload and prepare the user's home by it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial

from ai.backend.agent.channel import files
from ai.backend.agent.channel.channel import KernelChannel
from ai.backend.agent.channel.model import RunsRecord
from ai.backend.agent.channel.programs import Programs
from ai.backend.agent.channel.runs import RunQueue
from ai.backend.agent.channel.terminals import Terminals
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.lifecycle.context import Step, StepContext
from ai.backend.agent.lifecycle.workload_config import BOOTSTRAP_PATH, memory_bytes_of
from ai.backend.common.errors import (
    DeadlineExceeded,
    Forbidden,
    InvalidInput,
    LimitExceeded,
    NotFound,
    RunError,
    Unavailable,
)
from ai.backend.infra.retry import Backoff
from ai.backend.plugin.runtime import AbstractRuntime, RunnerChannel, WorkloadKey, WorkloadState

_CONNECT_RETRIES = 7
_CONNECT_FIRST_S, _CONNECT_MAX_S = 0.02, 1.0
_REQUESTS_PER_EPOCH = 1 << 24
"""Request numbers must differ after each start of the agent, because old replies are replayed."""
log = logging.getLogger(__name__)
RUN_ID = "bootstrap"


class Channel(Step):
    """Opens the channel and waits until the runner is ready; releases by closing the channel."""

    name = "channel"

    async def acquire(self, kernel: Kernel, step: StepContext) -> None:
        restored_runs = self.context.records.load_runs(kernel.id)
        if kernel.channel is None:
            await self._open_with_retries(kernel, restored_runs)
        assert kernel.channel is not None
        assert kernel.runs is not None
        if not kernel.record.ready:
            await kernel.channel.wait_ready(self.context.settings.kernel_lifecycles.ready_timeout)
            notes = [note for note in (kernel.record.note, kernel.channel.problem) if note]
            kernel.save(ready=True, note="; ".join(notes) or None)
        if restored_runs is not None:
            await kernel.runs.reconcile()

    async def _open_with_retries(self, kernel: Kernel, restored_runs: RunsRecord | None) -> None:
        """Connects to the runner, with retries because a runner that was just started may not listen yet."""
        backoff = Backoff(_CONNECT_FIRST_S, _CONNECT_MAX_S)
        for _ in range(_CONNECT_RETRIES):
            try:
                return await self.open(kernel, restored_runs)
            except Unavailable:
                workload_view = await self.context.runtime.inspect(kernel.key)
                if workload_view is None or workload_view.state is not WorkloadState.RUNNING:
                    raise
            await backoff.wait()
        return await self.open(kernel, restored_runs)

    async def open(self, kernel: Kernel, restored_runs: RunsRecord | None) -> None:
        """Connects to the runner, and restores the runs that were recorded before the agent was restarted."""
        epoch = self.context.epoch
        last_seq = restored_runs.acked if restored_runs is not None and restored_runs.attempt == kernel.attempt else 0
        channel = KernelChannel(
            _Opener(self.context.runtime, kernel.key, epoch),
            received=last_seq,
            next_request=epoch * _REQUESTS_PER_EPOCH,
        )
        run_settings = self.context.settings.runs
        runs = RunQueue(
            channel,
            attempt=kernel.attempt,
            settings=run_settings,
            exec_timeout_s=kernel.record.spec.exec_timeout_s or run_settings.exec_timeout,
            save=partial(self.context.records.put_runs, kernel.id),
            restored=restored_runs,
            features=kernel.record.features,
            memory_bytes=memory_bytes_of(kernel.record.spec),
            span_attributes={
                "backendai.session_id": kernel.record.spec.session_id,
                "backendai.kernel_id": kernel.id,
            },
            wall_clock=self.context.wall_clock,
        )
        terminals = Terminals(channel, prefix=f"e{epoch}")
        kernel.programs = Programs(channel, prefix=f"e{epoch}", acknowledge=runs.acknowledge)
        await channel.connect()
        kernel.channel, kernel.runs, kernel.terminals = channel, runs, terminals
        kernel.changed.set()

    async def release(self, kernel: Kernel, step: StepContext) -> None:
        if kernel.runs is not None:
            kernel.runs.on_exit({"reason": "the session is being ended"})
        await kernel.disconnect()


@dataclass(slots=True)
class _Opener:
    """Represents a function that opens the channel of one workload.

    A closure would need five objects for each kernel.
    """

    runtime: AbstractRuntime
    key: WorkloadKey
    epoch: int

    async def __call__(self, last_seq: int) -> RunnerChannel:
        return await self.runtime.open_channel(self.key, epoch=self.epoch, last_seq=last_seq)


class Bootstrap(Step):
    """Writes the user's dotfiles and runs the bootstrap script once, by the runner, before the session is usable.

    The session starts even if the script or a file fails; a note tells the user.
    """

    name = "bootstrap"

    async def acquire(self, kernel: Kernel, step: StepContext) -> None:
        spec = kernel.record.spec
        if kernel.record.bootstrapped or not (spec.bootstrap_script or spec.dotfiles):
            return
        problems = [await self._write_dotfiles(kernel), await self._run(kernel) if spec.bootstrap_script else None]
        for problem in filter(None, problems):
            log.warning("kernel %s: %s", kernel.id, problem)
        notes = [text for text in (kernel.record.note, *problems) if text]
        kernel.save(bootstrapped=True, note="; ".join(notes) or None)
        if kernel.runs is not None:
            kernel.runs.forget_result(RUN_ID)

    async def _write_dotfiles(self, kernel: Kernel) -> str | None:
        assert kernel.channel is not None
        timeout_s = self.context.settings.kernel_lifecycles.bootstrap_timeout
        refused_paths = []
        for dotfile in kernel.record.spec.dotfiles:
            try:
                await files.upload(kernel.channel, [dotfile], timeout_s)
            except DeadlineExceeded:
                return f"the dotfiles were not written within {timeout_s:g} s"
            except (Forbidden, NotFound, InvalidInput, LimitExceeded, RunError) as e:
                refused_paths.append(f"{dotfile.path} ({e.message})")
        return f"dotfiles that could not be written: {', '.join(refused_paths)}" if refused_paths else None

    async def _run(self, kernel: Kernel) -> str | None:
        assert kernel.runs is not None
        timeout_s = self.context.settings.kernel_lifecycles.bootstrap_timeout
        problem: str | None = None
        try:
            async with asyncio.timeout(timeout_s):
                result = await kernel.runs.run_command(RUN_ID, f"sh {BOOTSTRAP_PATH}")
            if result.exit_code != 0:
                problem = f"the bootstrap script ended with exit code {result.exit_code}"
        except TimeoutError:
            await kernel.runs.cancel(RUN_ID, "bootstrap-timeout")
            problem = f"the bootstrap script took longer than {timeout_s:g} s and was ended"
        return problem


class CloseRoutes(Step):
    """Closes the routes of a kernel before anything else of it is released. Routes outlast a restart in place."""

    name = "routes"

    async def release(self, kernel: Kernel, step: StepContext) -> None:
        gateway = self.context.gateway
        (gateway.cut_kernel_connections if step.restarting else gateway.close_kernel_routes)(kernel.id)

    async def acquire(self, kernel: Kernel, step: StepContext) -> None:
        """Does nothing: routes are opened while the kernel runs."""
