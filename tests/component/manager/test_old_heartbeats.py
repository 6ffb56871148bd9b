"""Heartbeats that come late, twice or in another order, also in that of what is written of them."""

from __future__ import annotations

import asyncio

import pytest

from ai.backend.common.errors import InvalidInput, NotFound
from ai.backend.common.ids import AgentId
from ai.backend.common.states import AgentStatus
from ai.backend.common.wire.reports import AgentReport
from ai.backend.manager.agents.sql import SqlAgentStore
from ai.backend.manager.sessions.model import CreateSession, Session
from tests.component.manager.conftest import Cluster
from tests.component.manager.fakes import FakeAgent


async def _running(cluster: Cluster) -> Session:
    reply = await cluster.manager.services.sessions.create(cluster.user, CreateSession(image="python", max_wait_s=30))
    assert reply.status == "RUNNING"
    await asyncio.sleep(0.02)  # longer than the grace of these tests
    return reply.session


async def _send(agent: FakeAgent, report: AgentReport) -> None:
    assert agent.reports is not None
    await agent.reports.heartbeat(report)


async def test_what_an_old_heartbeat_lacks_is_not_missing(cluster: Cluster, agent: FakeAgent) -> None:
    old = agent.report(number=1)
    session = await _running(cluster)
    await _send(agent, agent.report(number=2))
    for _ in range(3):
        await _send(agent, old)
    assert (await cluster.manager.services.sessions.get(cluster.user, str(session.id))).status == "RUNNING"


async def test_reports_that_are_older_than_the_start_of_a_kernel_do_not_end_it(
    cluster: Cluster, agent: FakeAgent
) -> None:
    """A slow connection delivers heartbeats later than another one the observation of the kernel's start."""
    session = await _running(cluster)
    ack = await cluster.manager.stores.sessions.acked(AgentId(agent.agent_id))
    assert ack is not None
    assert ack.epoch == agent.epoch
    for number in (1, 2, 3):
        await _send(agent, agent.report(number=number, kernels=[], observed=ack.seq - 1))
    assert (await cluster.manager.services.sessions.get(cluster.user, str(session.id))).status == "RUNNING"
    for number in (4, 5):
        await _send(agent, agent.report(number=number, kernels=[], observed=ack.seq))
    assert (await cluster.manager.services.sessions.get(cluster.user, str(session.id))).status != "RUNNING"


async def test_one_heartbeat_that_comes_twice_is_one(cluster: Cluster, agent: FakeAgent) -> None:
    session = await _running(cluster)
    lacking = agent.report(number=1, kernels=[])
    for _ in range(3):
        await _send(agent, lacking)
    assert (await cluster.manager.services.sessions.get(cluster.user, str(session.id))).status == "RUNNING"
    await _send(agent, agent.report(number=2, kernels=[]))
    assert (await cluster.manager.services.sessions.get(cluster.user, str(session.id))).status != "RUNNING"


async def test_who_leads_again_has_seen_nothing_missing_before(cluster: Cluster, agent: FakeAgent) -> None:
    session = await _running(cluster)
    await _send(agent, agent.report(number=1, kernels=[]))
    cluster.manager.registry.become_leader()
    await _send(agent, agent.report(number=2, kernels=[]))
    assert (await cluster.manager.services.sessions.get(cluster.user, str(session.id))).status == "RUNNING"


async def test_the_first_heartbeat_of_a_new_epoch_is_not_old(cluster: Cluster, agent: FakeAgent) -> None:
    await _send(agent, agent.report(number=7))
    agent.slots["cpu"] = "5"
    agent.epoch += 1
    await _send(agent, agent.report(number=1))
    stored = await SqlAgentStore(cluster.database).agent(AgentId(agent.agent_id))
    assert stored is not None
    assert stored.available_slots["cpu"] == 5


async def test_an_agent_that_is_heard_does_not_stay_lost(cluster: Cluster, agent: FakeAgent) -> None:
    """The loss was written slowly: the agent was heard again before it was committed."""
    store, agent_id = SqlAgentStore(cluster.database), AgentId(agent.agent_id)
    await _send(agent, agent.report(number=1))
    await store.set_status(agent_id, AgentStatus.LOST, at=cluster.clock.now())
    async with asyncio.timeout(30):
        while (stored := await store.agent(agent_id)) is None or stored.status is not AgentStatus.ALIVE:
            await agent.beat()
            await asyncio.sleep(0.1)


async def test_an_agent_without_its_earlier_data_is_heard_again(cluster: Cluster, agent: FakeAgent) -> None:
    """Its epochs begin anew: what it says counts as old until the agent of before counts as lost."""
    registry, agent_id = cluster.manager.registry, AgentId(agent.agent_id)
    agent.epoch = 7
    await _send(agent, agent.report(number=3))
    agent.epoch = 1
    agent.slots["cpu"] = "5"
    await _send(agent, agent.report(number=1))
    assert (await SqlAgentStore(cluster.database).agent(agent_id)).available_slots["cpu"] != 5  # type: ignore[union-attr]
    registry.mark_lost(agent_id)
    await _send(agent, agent.report(number=2))
    assert (await SqlAgentStore(cluster.database).agent(agent_id)).available_slots["cpu"] == 5  # type: ignore[union-attr]


async def test_an_agent_that_is_too_old_is_refused(cluster: Cluster, agent: FakeAgent) -> None:
    with pytest.raises(InvalidInput, match=r"agent-1 is of version 25\.3\.0"):
        await _send(agent, agent.report(number=9, version="25.3.0"))
    await _send(agent, agent.report(number=9))


async def test_an_agent_of_a_missing_resource_group_takes_no_sessions(cluster: Cluster, agent: FakeAgent) -> None:
    """Spec 03-01:258: the group that an agent reports must exist."""
    await _running(cluster)
    agents = cluster.manager.stores.agents
    with pytest.raises(NotFound, match="nowhere"):
        await _send(agent, agent.report(number=1, resource_group="nowhere"))
    stored = await agents.agent(AgentId(agent.agent_id))
    assert stored is not None
    assert stored.status is AgentStatus.LOST
    reply = await cluster.manager.services.sessions.create(
        cluster.user, CreateSession(image="python", enqueue_only=True)
    )
    await asyncio.sleep(0.1)
    assert (await cluster.manager.services.sessions.get(cluster.user, str(reply.session.id))).status == "PENDING"
    await _send(agent, agent.report(number=2))
    stored = await agents.agent(AgentId(agent.agent_id))
    assert stored is not None
    assert stored.status is AgentStatus.ALIVE
