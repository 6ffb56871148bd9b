"""Heartbeats that say nothing new are short; those of many agents are one call; a manager that has none gets a whole
one."""

from __future__ import annotations

import asyncio
from uuid import UUID

from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import KernelId
from ai.backend.common.states import KernelStatus
from ai.backend.common.wire.reports import AgentReport, BeatReply, BeatReport, HeartbeatReply, KernelPresence
from ai.backend.infra.rpc.beats import ChangedReports
from tests.support.agent_fakes import FakeManager


class Manager(FakeManager):
    def __init__(self) -> None:
        super().__init__()
        self.beats: list[BeatReport] = []
        self.stale: list[str] = []
        self.has_beats = True
        self.presence = KernelPresence(kernel_id=str(KernelId(UUID(int=1))), attempt=1, status=KernelStatus.RUNNING)

    async def beat(self, report: BeatReport) -> BeatReply:
        if not self.has_beats:
            raise InvalidInput("there is no method 'beat'")
        self.beats.append(report)
        return BeatReply(interval_s=4.0, stale=self.stale, unknown_kernels={"a": [self.presence]})

    async def heartbeat(self, report: AgentReport) -> HeartbeatReply:
        self.heartbeats.append(report)
        return HeartbeatReply(interval_s=3.0)


def report(agent_id: str, number: int, version: str = "1") -> AgentReport:
    return AgentReport(
        agent_id=agent_id, epoch=7, number=number, version=version, architecture="x86_64", resource_group="default"
    )


async def test_only_changes_are_sent_whole() -> None:
    manager = Manager()
    link = ChangedReports(manager)
    assert (await link.heartbeat(report("a", 1))).interval_s == 3.0
    reply = await link.heartbeat(report("a", 2))
    assert (reply.interval_s, reply.unknown_kernels) == (4.0, [manager.presence])
    await link.heartbeat(report("a", 3, version="2"))
    await link.heartbeat(report("a", 4, version="2"))
    assert [r.number for r in manager.heartbeats] == [1, 3]
    assert [(b.number, b.unchanged_since) for r in manager.beats for b in r.beats] == [(2, 1), (4, 3)]


async def test_beats_of_many_agents_are_one_call_and_a_stale_one_is_sent_whole() -> None:
    manager = Manager()
    link = ChangedReports(manager)
    names = ["a", "b", "c"]
    await asyncio.gather(*(link.heartbeat(report(name, 1)) for name in names))
    manager.stale = ["b"]
    replies = await asyncio.gather(*(link.heartbeat(report(name, 2)) for name in names))
    assert [sorted(r.agent_ids) for r in manager.beats] == [names]
    assert [r.agent_id for r in manager.heartbeats[3:]] == ["b"]
    assert [len(reply.unknown_kernels) for reply in replies] == [1, 0, 0]


async def test_a_manager_that_knows_no_beats_gets_whole_heartbeats() -> None:
    manager = Manager()
    manager.has_beats = False
    link = ChangedReports(manager)
    for number in range(1, 4):
        await link.heartbeat(report("a", number))
    assert [r.number for r in manager.heartbeats] == [1, 2, 3]
