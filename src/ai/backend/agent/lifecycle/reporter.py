"""Reports the state of kernels to the manager."""

from __future__ import annotations

import logging
from typing import Any

from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.kernels.model import Termination
from ai.backend.agent.lifecycle.context import AgentContext
from ai.backend.agent.lifecycle.termination import exit_code_of
from ai.backend.common.errors import BackendError
from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.common.wire.agent import DestroyKernel
from ai.backend.common.wire.reports import UnhealthyDevice

log = logging.getLogger(__name__)
_LOG_TAIL = 65_536


class StatusReporter:
    """Writes reports to the outbox. The caller changes the record after it has reported the change."""

    def __init__(self, context: AgentContext) -> None:
        self._observer = context.observer
        self._runtime = context.runtime

    def status(
        self,
        kernel: Kernel,
        status: KernelStatus,
        reason: KernelEventReason = KernelEventReason.UNKNOWN,
        **details: Any,
    ) -> None:
        self._observer.report(kernel.id, kernel.attempt, status, reason, **details)

    def running(self, kernel: Kernel, reason: KernelEventReason, unhealthy: list[UnhealthyDevice]) -> None:
        record = kernel.record
        self.status(
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

    def adopted(self, kernel: Kernel) -> None:
        """Report a kernel that kept running while the agent was stopped."""
        self.status(
            kernel,
            KernelStatus.RUNNING,
            KernelEventReason.RESUMING_AGENT_OPERATION,
            workload_id=kernel.record.workload_id,
            devices=kernel.record.allocation,
            attached_devices=kernel.record.attached_devices,
        )

    def unknown_kernel(self, req: DestroyKernel) -> None:
        self._observer.report(
            req.kernel_id,
            req.attempt,
            KernelStatus.TERMINATED,
            req.reason,
            message="the agent holds no such kernel",
        )

    def end(self, kernel: Kernel, ending: Termination | None) -> None:
        """Report the end of a kernel, if it has one."""
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
        """Read the end of the log, which the manager stores; the rest is removed with the workload."""
        try:
            return await self._runtime.read_logs(kernel.key, max_bytes=_LOG_TAIL)
        except (BackendError, OSError) as e:
            log.info("the log of kernel %s cannot be read at its end: %s", kernel.id, e)
            return None
