"""When reports are sent."""

from __future__ import annotations

import asyncio
from typing import cast

from ai.backend.agent.lifecycle.supervisor import Supervisor
from ai.backend.agent.link.report import Heartbeat, HeartbeatReporter
from ai.backend.common.errors import Unavailable
from ai.backend.common.wire.link import ManagerReports
from ai.backend.common.wire.reports import AgentReport, HeartbeatReply


class _Reporting:
    def report(self) -> AgentReport:
        return cast(AgentReport, None)


class _Manager:
    """Loses the first report with its connection."""

    def __init__(self) -> None:
        self.calls = 0
        self.heard = asyncio.Event()

    async def heartbeat(self, report: AgentReport) -> HeartbeatReply:
        self.calls += 1
        if self.calls == 1:
            raise Unavailable("the manager was started anew")
        self.heard.set()
        return HeartbeatReply(interval_s=50.0)


async def test_a_report_that_was_lost_is_repeated_before_its_interval() -> None:
    manager = _Manager()
    loop = Heartbeat(
        cast(HeartbeatReporter, _Reporting()), cast(Supervisor, None), cast(ManagerReports, manager), interval_s=60.0
    )
    running = asyncio.create_task(loop.run())
    try:
        await asyncio.wait_for(manager.heard.wait(), 20)
    finally:
        running.cancel()
    assert loop.period_s == 50.0, "as the manager says"
