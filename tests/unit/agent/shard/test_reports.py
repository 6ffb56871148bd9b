"""What the agent of a node sends through its shard: no statistics of nothing, and none while the node is lost."""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec

from ai.backend.agent.shard.nodes import NodeFacts
from ai.backend.agent.shard.shard import NodeReports
from ai.backend.common.structs import replace
from ai.backend.common.wire.link import ManagerReports
from ai.backend.common.wire.reports import AgentReport, HeartbeatReply, MetricFamily, StatReport

FACTS = NodeFacts(name="n1", uid="u", agent_id="c.n1", architecture="x86_64")
NO_SAMPLES = MetricFamily(name="backendai_device_overuse", kind="gauge", help="h", samples=[])
NOTHING = StatReport(agent_id="c.n1", at=1.0, families=[NO_SAMPLES])
SOMETHING = StatReport(agent_id="c.n1", at=2.0, kernels={"k": msgspec.Raw(b"\x80")})


class Manager:
    def __init__(self) -> None:
        self.reports: list[StatReport] = []
        self.beats: list[AgentReport] = []

    async def heartbeat(self, report: AgentReport) -> HeartbeatReply:
        self.beats.append(report)
        return HeartbeatReply(interval_s=3.0)

    async def report_stats(self, report: StatReport) -> None:
        self.reports.append(report)


async def test_statistics_of_nothing_are_sent_once() -> None:
    manager = Manager()
    reports = NodeReports(cast("ManagerReports", manager), "c", lambda: FACTS, asyncio.Event())
    sent = [NOTHING, NOTHING, SOMETHING, SOMETHING, NOTHING, NOTHING, NOTHING, SOMETHING]
    for report in sent:
        await reports.report_stats(report)
    assert manager.reports == [NOTHING, SOMETHING, SOMETHING, NOTHING, SOMETHING]


async def test_a_lost_node_has_no_statistics() -> None:
    manager = Manager()
    lost = replace(FACTS, lost="its kubelet is silent")
    await NodeReports(cast("ManagerReports", manager), "c", lambda: lost, asyncio.Event()).report_stats(SOMETHING)
    assert not manager.reports


async def test_the_loss_of_a_node_is_reported_once_and_its_return_by_a_new_report() -> None:
    manager, present = Manager(), asyncio.Event()
    facts = replace(FACTS, lost="its kubelet is silent")
    reports = NodeReports(cast("ManagerReports", manager), "c", lambda: facts, present)
    report = AgentReport(agent_id="c.n1", epoch=1, number=1, version="1", architecture="", resource_group="")
    waiting = asyncio.create_task(reports.heartbeat(report))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    assert [(beat.speaker, beat.loss) for beat in manager.beats] == [("c", "its kubelet is silent")]
    facts = FACTS
    present.set()
    assert (await waiting).interval_s < 0.1
    assert len(manager.beats) == 1, "what it was before it was lost may be wrong by now"
    await reports.heartbeat(report)
    assert [(beat.speaker, beat.loss) for beat in manager.beats[1:]] == [("c", "")]
