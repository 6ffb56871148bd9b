"""Runs the startup command of batch sessions and ends the kernel with its result, even while the manager is away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from ai.backend.agent.channel.runs import KILLED, memory_hint
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.kernels.model import Termination
from ai.backend.agent.lifecycle.workload_config import memory_bytes_of
from ai.backend.common.errors import BackendError
from ai.backend.common.states import KernelEventReason
from ai.backend.common.wire.agent import KernelSpec
from ai.backend.core.lifecycle.kernel_phase import Phase

log = logging.getLogger(__name__)
RUN_ID = "startup"
_EXIT_EVENT_S = 2.0


async def watch_batch(
    kernel: Kernel, end_kernel: Callable[[Kernel, Termination], None], wall_clock: Callable[[], float] = time.time
) -> None:
    """Runs the batch command, or follows the command again after an agent restart; then ends the kernel."""
    spec = kernel.record.spec
    assert spec.startup_command
    if kernel.record.batch_since is None:
        kernel.save(batch_since=wall_clock())
    began_at = kernel.record.batch_since
    remaining_s = (
        spec.batch_timeout_s - (wall_clock() - began_at) if spec.batch_timeout_s and began_at is not None else None
    )
    ending = Termination(reason=KernelEventReason.TASK_FAILED)
    try:
        _, runs, _ = kernel.running()
        async with asyncio.timeout(max(0.0, remaining_s) if remaining_s is not None else None):
            result = await runs.run_command(RUN_ID, spec.startup_command)
        ending = ending_of_program(spec, result.exit_code, result.reason)
    except TimeoutError:
        message = f"the program took longer than {spec.batch_timeout_s:g} s"
        ending = Termination(reason=KernelEventReason.TASK_TIMEOUT, message=message)
    except BackendError as e:
        ending = Termination(reason=KernelEventReason.TASK_FAILED, message=str(e))
    if kernel.channel is not None and kernel.channel.ended:
        await _wait_for_exit_event(kernel)
    if kernel.phase is Phase.RUNNING:
        end_kernel(kernel, ending)


def ending_of_program(spec: KernelSpec, exit_code: int | None, problem: str | None) -> Termination:
    """Returns the termination of a batch session's kernel by the exit code of its program."""
    if exit_code == 0 and not problem:
        return Termination(reason=KernelEventReason.TASK_FINISHED, exit_code=0)
    if exit_code == KILLED and not problem and (memory_bytes := memory_bytes_of(spec)):
        problem = f"the program was killed, probably for want of memory: {memory_hint(memory_bytes)}"
    return Termination(reason=KernelEventReason.TASK_FAILED, message=problem, exit_code=exit_code)


async def _wait_for_exit_event(kernel: Kernel) -> None:
    """Waits until the runtime reports why the workload ended."""
    try:
        async with asyncio.timeout(_EXIT_EVENT_S):
            while kernel.phase is Phase.RUNNING:
                kernel.changed.clear()
                await kernel.changed.wait()
    except TimeoutError:
        pass  # the command's own error is reported
