"""Reports the state of kernels to the manager, and maps errors and exits to final statuses."""

from __future__ import annotations

import logging
from typing import Any

from ai.backend.agent.channel.channel import StartFailed
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.kernels.model import Termination
from ai.backend.agent.lifecycle.context import AgentContext
from ai.backend.common.errors import BackendError, CreationDeferred, CreationDenied, ImageNotFound
from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.common.wire.agent import DestroyKernel
from ai.backend.common.wire.reports import UnhealthyDevice
from ai.backend.plugin.runtime import WorkloadExit

log = logging.getLogger(__name__)
_LOG_TAIL_BYTES = 65_536


def exit_code_of(workload_exit: WorkloadExit | None) -> int | None:
    """Returns a workload's exit code as a shell does: the code, or 128 plus the signal."""
    if workload_exit is None:
        return None
    return 128 + workload_exit.signal if workload_exit.signal is not None else workload_exit.code


def ending_of(error: Exception, workload_exit: WorkloadExit | None, *, restarting: bool = False) -> Termination:
    """Returns the termination of a kernel whose creation has failed with this error.

    A deferred creation goes back to the scheduler, a deferred restart fails.
    """
    message = str(error) or type(error).__name__
    if isinstance(error, CreationDeferred):
        return Termination(
            status=KernelStatus.ERROR if restarting else KernelStatus.PENDING,
            reason=KernelEventReason.CREATION_DEFERRED,
            message=message,
            retry_after_s=None if restarting else error.retry_after,
        )
    if isinstance(error, (CreationDenied, ImageNotFound)):
        reason = KernelEventReason.CREATION_DENIED
    elif workload_exit is not None and workload_exit.oom:
        reason = KernelEventReason.OUT_OF_MEMORY
    else:
        reason = (
            KernelEventReason.FAILED_TO_START if isinstance(error, StartFailed) else KernelEventReason.FAILED_TO_CREATE
        )
    return Termination(status=KernelStatus.ERROR, reason=reason, message=message)


class StatusReporter:
    """Writes reports of kernels to the outbox. The caller reports each change before changing the record."""

    def __init__(self, context: AgentContext) -> None:
        self._observer = context.observer
        self._runtime = context.runtime

    def report_status(
        self,
        kernel: Kernel,
        status: KernelStatus,
        reason: KernelEventReason = KernelEventReason.UNKNOWN,
        **details: Any,
    ) -> None:
        self._observer.report(kernel.id, kernel.attempt, status, reason, **details)

    def report_running(self, kernel: Kernel, reason: KernelEventReason, unhealthy: list[UnhealthyDevice]) -> None:
        record = kernel.record
        self.report_status(
            kernel,
            KernelStatus.RUNNING,
            reason,
            message=record.note,
            workload_id=record.workload_id,
            devices=record.allocation,
            attached_devices=record.attached_devices,
            unhealthy_devices=unhealthy,
            service_ports=record.services,
        )

    def report_adopted(self, kernel: Kernel) -> None:
        """Reports a kernel that kept running while the agent was stopped."""
        self.report_status(
            kernel,
            KernelStatus.RUNNING,
            KernelEventReason.RESUMING_AGENT_OPERATION,
            workload_id=kernel.record.workload_id,
            devices=kernel.record.allocation,
            attached_devices=kernel.record.attached_devices,
        )

    def report_unknown_kernel(self, req: DestroyKernel) -> None:
        self._observer.report(
            req.kernel_id, req.attempt, KernelStatus.TERMINATED, req.reason, message="the agent holds no such kernel"
        )

    def report_end(self, kernel: Kernel, ending: Termination | None) -> None:
        """Reports the end of a kernel, if ``ending`` is given."""
        if ending is None:
            return
        exit_code = ending.exit_code
        self._observer.report(
            kernel.id,
            kernel.attempt if ending.attempt is None else ending.attempt,
            ending.status,
            ending.reason,
            message=ending.message,
            exit_code=exit_code if exit_code is not None else exit_code_of(kernel.exit),
            workload_id=kernel.record.workload_id or None,
            last_stat=kernel.last_stat,
            log_tail=kernel.log_tail,
            retry_after_s=ending.retry_after_s,
        )

    async def log_tail(self, kernel: Kernel) -> bytes | None:
        """Reads the end of the kernel's log for the manager; the rest of the log is removed with the workload."""
        try:
            return await self._runtime.read_logs(kernel.key, max_bytes=_LOG_TAIL_BYTES)
        except (BackendError, OSError) as e:
            log.info("the log of kernel %s cannot be read at its end: %s", kernel.id, e)
            return None
