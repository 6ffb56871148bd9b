"""Measures the node and its kernels and reports to the manager."""

from __future__ import annotations

import time
from collections.abc import Callable

from ai.backend.agent.lifecycle.supervisor import Supervisor
from ai.backend.agent.metrics.statistics import Statistics
from ai.backend.common.wire.link import ManagerReports
from ai.backend.common.wire.reports import StatReport
from ai.backend.core.lifecycle.kernel_phase import Phase
from ai.backend.infra.loop import PeriodicLoop


class StatisticsLoop(PeriodicLoop):
    """Measures once each interval. A lost report is not repeated, because the next one replaces it."""

    def __init__(
        self,
        statistics: Statistics,
        supervisor: Supervisor,
        manager: ManagerReports,
        *,
        agent_id: str,
        interval_s: float,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self.period_s = interval_s
        self._statistics = statistics
        self._supervisor = supervisor
        self._manager = manager
        self._agent_id = agent_id
        self._wall_clock = wall_clock

    @property
    def name(self) -> str:
        return "statistics"

    async def once(self) -> None:
        await self._statistics.gather([k for k in self._supervisor.live() if k.phase is Phase.RUNNING])
        report = StatReport(
            agent_id=self._agent_id,
            at=self._wall_clock(),
            node=self._statistics.node,
            devices=self._statistics.devices,
            kernels=self._statistics.kernels,
            families=self._statistics.families,
        )
        await self._manager.report_stats(report)
