"""What the agent of a node sends through its shard: no statistics of nothing, and none while the node is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import msgspec

from ai.backend.agent.shard.nodes import NodeFacts
from ai.backend.agent.shard.shard import NodeReports
from ai.backend.common.wire.link import ManagerReports
from ai.backend.common.wire.reports import MetricFamily, StatReport

FACTS = NodeFacts(name="n1", uid="u", agent_id="c.n1", architecture="x86_64")
NO_SAMPLES = MetricFamily(name="backendai_device_overuse", kind="gauge", help="h", samples=[])
NOTHING = StatReport(agent_id="c.n1", at=1.0, families=[NO_SAMPLES])
SOMETHING = StatReport(agent_id="c.n1", at=2.0, kernels={"k": msgspec.Raw(b"\x80")})


class Manager:
    def __init__(self) -> None:
        self.reports: list[StatReport] = []

    async def report_stats(self, report: StatReport) -> None:
        self.reports.append(report)


async def test_statistics_of_nothing_are_sent_once() -> None:
    manager = Manager()
    reports = NodeReports(cast("ManagerReports", manager), "c", lambda: FACTS)
    sent = [NOTHING, NOTHING, SOMETHING, SOMETHING, NOTHING, NOTHING, NOTHING, SOMETHING]
    for report in sent:
        await reports.report_stats(report)
    assert manager.reports == [NOTHING, SOMETHING, SOMETHING, NOTHING, SOMETHING]


async def test_a_lost_node_has_no_statistics() -> None:
    manager = Manager()
    lost = replace(FACTS, lost="its kubelet is silent")
    await NodeReports(cast("ManagerReports", manager), "c", lambda: lost).report_stats(SOMETHING)
    assert not manager.reports
