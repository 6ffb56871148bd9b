"""Sends heartbeats to the manager and ends kernels that the manager does not know."""

from __future__ import annotations

import logging

from ai.backend.agent.kernels.model import Termination
from ai.backend.agent.lifecycle.supervisor import Supervisor
from ai.backend.agent.link.report import HeartbeatReporter
from ai.backend.common.errors import Unavailable
from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.common.wire.link import ManagerReports
from ai.backend.infra.loop import PeriodicLoop

log = logging.getLogger(__name__)

_RETRY_S = 0.25
"""The delay after a failed heartbeat; the next call waits for the connection by itself."""


class Heartbeat(PeriodicLoop):
    """Sends one report each interval; the manager's reply sets the next interval."""

    def __init__(
        self, reporting: HeartbeatReporter, supervisor: Supervisor, manager: ManagerReports, *, interval_s: float
    ) -> None:
        super().__init__()
        self.period_s = interval_s
        self._reporting = reporting
        self._supervisor = supervisor
        self._manager = manager
        self._is_cut_off = False

    @property
    def name(self) -> str:
        return "heartbeat"

    async def once(self) -> None:
        try:
            reply = await self._manager.heartbeat(self._reporting.report())
        except Unavailable as e:
            if not self._is_cut_off:
                log.warning("the manager cannot be reached: %s", e)
            self._is_cut_off = True
            self.period_s = min(_RETRY_S, self.period_s)
            return
        self._is_cut_off = False
        self.period_s = min(60.0, max(0.05, reply.interval_s))
        for unknown in reply.unknown_kernels:
            kernel = self._supervisor.kernels.get(unknown.kernel_id)
            if kernel is None or kernel.attempt != unknown.attempt:
                continue
            log.warning("the manager does not know kernel %s; it is ended", unknown.kernel_id)
            reason = KernelEventReason.NOT_FOUND_IN_MANAGER
            self._supervisor.end(kernel, Termination(status=KernelStatus.TERMINATED, reason=reason, forced=True))
