"""One connection speaks for many agents: those that its key covers, and of which it says that it carries them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ai.backend.common.errors import Forbidden, InvalidName, Unavailable
from ai.backend.common.wire.execution import ReadLogs
from ai.backend.common.wire.link import AgentCommands
from ai.backend.common.wire.reports import AgentReport, Beat, BeatReport
from ai.backend.infra.rpc.zmq.agent import ZmqAgentEndpoint
from ai.backend.infra.rpc.zmq.keys import check_bound_id, covers, generate_keypair
from tests.contract.rpc.conftest import Commands, Pair, ZmqAdapter

LOGS = ReadLogs(kernel_id="k", max_bytes=10)


class Logged(Commands):
    def __init__(self, text: bytes) -> None:
        super().__init__()
        self.text = text

    async def read_logs(self, req: ReadLogs) -> bytes:
        return self.text


@pytest.fixture
async def pair(zmq_adapter: ZmqAdapter) -> AsyncIterator[Pair]:
    pair = Pair(zmq_adapter)
    await pair.manager.start(pair.reports)
    yield pair
    await pair.close()


async def carry(pair: Pair, adapter: ZmqAdapter, bound_id: str, carried: dict[str, AgentCommands]) -> ZmqAgentEndpoint:
    keys = generate_keypair()
    adapter.agent_keys.allow(bound_id, keys.public)
    end: ZmqAgentEndpoint = pair.also(adapter.agent_with(bound_id, keys))
    await end.start(carried)
    return end


def report(agent_id: str) -> AgentReport:
    return AgentReport(agent_id=agent_id, epoch=1, version="1", architecture="x86_64", resource_group="default")


async def test_commands_reach_each_agent_and_reports_come_for_each(pair: Pair, zmq_adapter: ZmqAdapter) -> None:
    carried: dict[str, AgentCommands] = {"prod.n1": Logged(b"1"), "prod.n2": Logged(b"2")}
    end = await carry(pair, zmq_adapter, "prod.*", carried)
    await pair.met("prod.n2")
    assert set(pair.manager.agents) == {"prod.n1", "prod.n2"}
    assert await pair.manager.agent("prod.n1").read_logs(LOGS) == b"1"
    assert await pair.manager.agent("prod.n2").read_logs(LOGS) == b"2"
    await end.reports.heartbeat(report("prod.n2"))
    beats = [Beat(agent_id=name, epoch=1, number=2, unchanged_since=1) for name in carried]
    assert (await end.reports.beat(BeatReport(beats=beats))).interval_s == 8.0
    for foreign in ("prodx.n3", "other.n1", "prod."):
        with pytest.raises(Forbidden, match="may not speak for"):
            await end.reports.heartbeat(report(foreign))
        with pytest.raises(Forbidden, match="may not speak for"):
            await end.reports.beat(
                BeatReport(beats=[*beats, Beat(agent_id=foreign, epoch=1, number=1, unchanged_since=0)])
            )
    assert [r.agent_id for r in pair.reports.heartbeats] == ["prod.n2"]


async def test_agents_come_and_go_on_the_same_connection(pair: Pair, zmq_adapter: ZmqAdapter) -> None:
    carried: dict[str, AgentCommands] = {"prod.n1": Logged(b"1")}
    await carry(pair, zmq_adapter, "prod.*", carried)
    await pair.met("prod.n1")
    carried["prod.n9"] = Logged(b"9")
    await pair.met("prod.n9")
    del carried["prod.n1"]
    with pytest.raises(Unavailable, match=r"prod\.n1 is not here"):
        await pair.manager.agent("prod.n1").read_logs(LOGS)
    await pair.met("prod.n1", is_there=False)
    assert await pair.manager.agent("prod.n9").read_logs(LOGS) == b"9"


async def test_a_connection_that_claims_an_agent_beyond_its_key_is_refused(pair: Pair, zmq_adapter: ZmqAdapter) -> None:
    end = await carry(pair, zmq_adapter, "prod.*", {"prod.n1": Logged(b""), "i-1": Logged(b"")})
    with pytest.raises(Unavailable, match="may not speak for all"):
        await end.reports.heartbeat(report("prod.n1"))
    assert "i-1" not in pair.manager.agents


async def test_of_two_connections_the_one_that_took_an_agent_last_speaks_for_it(
    pair: Pair, zmq_adapter: ZmqAdapter
) -> None:
    first = await carry(pair, zmq_adapter, "prod.*@a", {"prod.n1": Logged(b"a"), "prod.n2": Logged(b"a")})
    await pair.met("prod.n1")
    second = await carry(pair, zmq_adapter, "prod.*@b", {"prod.n1": Logged(b"b")})
    async with asyncio.timeout(10):
        while await pair.manager.agent("prod.n1").read_logs(LOGS) != b"b":  # noqa: ASYNC110  # of another process
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)  # greetings of both
    assert await pair.manager.agent("prod.n1").read_logs(LOGS) == b"b"
    assert await pair.manager.agent("prod.n2").read_logs(LOGS) == b"a"
    await second.reports.heartbeat(report("prod.n1"))
    with pytest.raises(Forbidden):
        await first.reports.heartbeat(report("prod.n1"))


def test_what_a_key_covers() -> None:
    assert covers("i-1", "i-1")
    assert not covers("i-1", "i-11")
    assert covers("prod.*@shard-a", "prod.node.1")
    assert not covers("prod.*", "prod.")
    assert not covers("prod.*", "prodx.n1")


@pytest.mark.parametrize("bound_id", ["*", ".*", "a.*b", "a.*@", "../a.*", "a.*@../b", "a/.*", "a*"])
def test_what_a_key_cannot_be_bound_to(bound_id: str) -> None:
    with pytest.raises(InvalidName):
        check_bound_id(bound_id)
