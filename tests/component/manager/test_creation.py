"""What a creation checks, reuses and refuses."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.common.errors import (
    BackendError,
    Forbidden,
    ImageNotFound,
    InsufficientResource,
    InvalidInput,
    LimitExceeded,
    NotFound,
    SessionAlreadyExists,
    UnsupportedResource,
)
from ai.backend.common.ids import AgentId
from ai.backend.common.states import AgentStatus, ClusterMode, SessionStatus, SessionType
from ai.backend.common.structs import replace
from ai.backend.common.wire.reports import OverlayReport
from ai.backend.manager.identity.model import ResourcePolicy
from ai.backend.manager.sessions.creation.request import parse_start
from ai.backend.manager.sessions.model import CreateSession
from tests.component.manager.conftest import Cluster
from tests.component.manager.fakes import FakeAgent


def request(**values: Any) -> CreateSession:
    return CreateSession(**{"image": "python", **values})


@pytest.mark.parametrize(
    ("values", "error", "field"),
    [
        ({"image": "perl"}, ImageNotFound, "available"),
        ({"architecture": "aarch64"}, ImageNotFound, "available"),
        ({"name": "a"}, InvalidInput, "name"),
        ({"group": "nobody"}, NotFound, "group"),
        ({"domain": "elsewhere"}, NotFound, "domain"),
        ({"scaling_group": "gpu"}, NotFound, "config.scalingGroup"),
        ({"resources": {"cuda.device": 1}}, UnsupportedResource, "config.resources"),
        ({"resources": {"cpu": "-1"}}, InvalidInput, "config.resources"),
        ({"resources": {"cpu": "Infinity"}}, InvalidInput, "config.resources"),
        ({"resources": {"cpu": "0.5"}}, InvalidInput, "config.resources"),
        ({"resources": {"cpu": 99}}, InsufficientResource, "shortage"),
        ({"resource_opts": {"shmem": "8g"}, "resources": {"mem": "1g"}}, InvalidInput, "config.resource_opts"),
        ({"resource_opts": {"turbo": "1"}}, InvalidInput, "config.resource_opts"),
        ({"environ": {"1X": "a"}}, InvalidInput, "environ"),
        ({"environ": {"X": "a" * 70_000}}, InvalidInput, "config.environ"),
        ({"mounts": ("data",)}, InvalidInput, "config.mounts"),
        ({"cluster_size": 0}, InvalidInput, "clusterSize"),
        ({"cluster_size": 65}, InvalidInput, "clusterSize"),
        ({"type": SessionType.BATCH}, InvalidInput, "startupCommand"),
        ({"type": SessionType.INFERENCE}, InvalidInput, "type"),
        ({"preopen_ports": (80,)}, InvalidInput, "config.preopen_ports"),
        ({"starts_at": "soon"}, InvalidInput, "starts_at"),
        ({"tag": "\x1b]0;title\x07"}, InvalidInput, "tag"),
        ({"tag": "a\nb"}, InvalidInput, "tag"),
        ({"callback_url": "http://example.com/\r\nX: y"}, InvalidInput, "callback_url"),
        ({"starts_at": "999999999w"}, InvalidInput, "starts_at"),
        ({"starts_at": "9999-12-31T23:59:59-23:59"}, InvalidInput, "starts_at"),
        ({"callback_url": "ftp://x"}, InvalidInput, "callback_url"),
        ({"agent_list": ("agent-1",)}, Forbidden, "config.agentList"),
        ({"dependencies": ("nothing",)}, InvalidInput, "dependencies"),
        ({"owner_access_key": "AKIANOBODY"}, Forbidden, "owner_access_key"),
        ({"max_wait_s": -1}, InvalidInput, "maxWaitSeconds"),
    ],
)
async def test_a_bad_request_names_its_field(
    cluster: Cluster, agent: FakeAgent, values: dict[str, Any], error: type[BackendError], field: str
) -> None:
    with pytest.raises(error) as caught:
        await cluster.manager.services.sessions.create(cluster.user, request(**values))
    assert field in caught.value.data
    assert await cluster.manager.services.sessions.count_active() == 0


async def test_defaults_come_from_the_image(cluster: Cluster, agent: FakeAgent) -> None:
    reply = await cluster.manager.services.sessions.create(cluster.user, request())
    assert reply.session.requested_slots.to_json() == {"cpu": "1", "mem": "67108864"}
    assert reply.session.resource_opts == {"shmem": "67108864"}
    assert reply.session.image == "host/python:3.11"
    assert reply.session.name.startswith("session-")


async def test_a_name_is_reused_or_refused(cluster: Cluster, agent: FakeAgent) -> None:
    sessions = cluster.manager.services.sessions
    first = await sessions.create(cluster.user, request(name="mine"))
    again = await sessions.create(cluster.user, request(name="mine", image="host/python:3.11"))
    assert (again.session.id, again.created) == (first.session.id, False)
    with pytest.raises(SessionAlreadyExists) as caught:
        await sessions.create(cluster.user, request(name="mine", reuse_if_exists=False))
    assert caught.value.data == {"existingSessionId": str(first.session.id)}
    other = await sessions.create(cluster.admin, request(name="mine"))
    assert other.created, "names are unique for each access key only"
    await sessions.destroy(cluster.user, "mine")
    assert (await sessions.create(cluster.user, request(name="mine"))).created, "a name is free again after the end"


async def test_several_creations_at_once_by_one_call_or_of_one_name_give_one_session(
    cluster: Cluster, agent: FakeAgent
) -> None:
    sessions, call_id = cluster.manager.services.sessions, uuid4()
    replies = await asyncio.gather(
        *(sessions.create(cluster.user, request(), call_id=call_id) for _ in range(5)),
        *(sessions.create(cluster.user, request(name="twins")) for _ in range(5)),
    )
    for group in (replies[:5], replies[5:]):
        assert len({r.session.id for r in group}) == 1
        assert sum(r.created for r in group) == 1
        assert {r.status for r in group} == {"RUNNING"}
    assert replies[0].session.id == call_id
    assert await sessions.count_active() == 2
    await sessions.destroy(cluster.user, str(call_id))
    again = await sessions.create(cluster.user, request(), call_id=call_id)
    assert (again.session.id, again.created) == (call_id, False), "an ended session is not created again"


async def test_waiting_ends_with_timeout(cluster: Cluster, agent: FakeAgent) -> None:
    agent.stall = True
    reply = await cluster.manager.services.sessions.create(cluster.user, request(max_wait_s=0.05))
    assert reply.status == "TIMEOUT"
    queued = await cluster.manager.services.sessions.create(cluster.user, request(enqueue_only=True))
    assert queued.status == "PENDING"


async def test_what_does_not_fit_now_waits_with_a_reason_and_can_be_cancelled(
    cluster: Cluster, agent: FakeAgent
) -> None:
    sessions = cluster.manager.services.sessions
    first = await sessions.create(cluster.user, request(resources={"mock.device": 3}))
    waiting = await sessions.create(cluster.user, request(resources={"mock.device": 2}, max_wait_s=0.3))
    assert waiting.status == "TIMEOUT"
    told = (await sessions.get(cluster.user, str(waiting.session.id))).status_data["scheduler"]
    assert told["reason"] == "insufficient-resource"
    assert "mock.device" in told["message"]
    third = await sessions.create(cluster.user, request(name="third", resources={"mock.device": 2}, enqueue_only=True))
    end = await sessions.destroy(cluster.user, "third")
    assert (end.session.status, end.session.id) == (SessionStatus.CANCELLED, third.session.id)
    await sessions.destroy(cluster.user, str(first.session.id))
    placed = await cluster.manager.services.writer.wait_until(
        waiting.session.id, lambda s: s.status is SessionStatus.RUNNING, timeout_s=5
    )
    assert placed is not None, "what the first returned goes to the one that waits"


async def test_an_agent_cannot_have_the_address_of_another(cluster: Cluster, agent: FakeAgent) -> None:
    """It would be sent what is for the other one. When that one is lost, the place is free."""
    agents = cluster.manager.stores.agents
    liar = FakeAgent(agent_id="agent-2")
    claim = OverlayReport(address=agent.address)
    reports = cluster.manager.reports
    await reports.heartbeat(liar.report(overlay=claim))
    assert await agents.underlays() == {
        AgentId(agent.agent_id): agent.report().overlay,
        AgentId("agent-2"): OverlayReport(
            why_not=f"agent {agent.agent_id} is at {agent.address} with the same port: set `underlay` of one of them"
        ),
    }
    await reports.heartbeat(agent.report(version="2"))
    assert (await agents.underlays())[AgentId(agent.agent_id)].address == agent.address, "the first stays"
    await agents.set_status(AgentId(agent.agent_id), AgentStatus.LOST, at=datetime.now(UTC))
    await reports.heartbeat(liar.report(overlay=claim))
    assert await agents.underlays() == {AgentId("agent-2"): claim}


async def test_a_cluster_starts_all_or_nothing(cluster: Cluster, agent: FakeAgent) -> None:
    second = await cluster.join(FakeAgent(agent_id="agent-2"))
    sessions = cluster.manager.services.sessions
    reply = await sessions.create(
        cluster.user,
        request(
            name="cluster",
            cluster_size=3,
            cluster_mode=ClusterMode.MULTI_NODE,
            resources={"cpu": 5, "mem": "1g"},
            max_wait_s=0.2,
        ),
    )
    assert reply.status == "TIMEOUT"
    assert not agent.created
    assert not second.created
    await sessions.destroy(cluster.user, "cluster")
    reply = await sessions.create(
        cluster.user, request(cluster_size=2, cluster_mode=ClusterMode.MULTI_NODE, resources={"cpu": 5, "mem": "1g"})
    )
    assert reply.status == "RUNNING"
    specs = {s.cluster_hostname: s for s in (*agent.created, *second.created)}
    assert set(specs) == {"main1", "sub1"}
    assert specs["sub1"].environ["BACKENDAI_CLUSTER_HOSTS"] == "main1,sub1"
    assert specs["sub1"].environ["BACKENDAI_CLUSTER_REPLICAS"] == "main:1,sub:1"
    assert specs["sub1"].environ["BACKENDAI_CLUSTER_LOCAL_RANK"] == "1"
    main, sub = (specs[host].cluster.overlay for host in ("main1", "sub1"))
    assert main is not None
    assert sub is not None
    assert (main.vni, main.subnet, main.addresses, main.secret) == (sub.vni, sub.subnet, sub.addresses, sub.secret)
    assert main.gateway != sub.gateway
    assert main.mtu == 1450
    assert {peer.port for peer in main.peers.values()} == {sub.local.port}
    assert len(await cluster.manager.stores.sessions.networks()) == 1
    await sessions.destroy(cluster.user, str(reply.session.id))
    assert await cluster.manager.stores.sessions.networks() == [], "given back with the slots"
    with pytest.raises(UnsupportedResource, match="encrypted network over several nodes: agent-1: not here"):
        await sessions.create(
            cluster.user,
            request(cluster_size=2, cluster_mode=ClusterMode.MULTI_NODE, resource_opts={"encrypted_network": "true"}),
        )
    await second.close()


async def test_one_kernel_ends_the_whole_cluster(cluster: Cluster, agent: FakeAgent) -> None:
    sessions = cluster.manager.services.sessions
    reply = await sessions.create(cluster.user, request(cluster_size=2))
    sub = reply.session.kernels[1]
    from ai.backend.common.states import KernelEventReason, KernelStatus

    await agent.tell(str(sub.id), sub.attempt, KernelStatus.ERROR, reason=KernelEventReason.OUT_OF_MEMORY)
    ended = await cluster.manager.services.writer.wait_until(
        reply.session.id, lambda s: s.status.is_final, timeout_s=30
    )
    assert ended is not None
    assert ended.status is SessionStatus.ERROR
    assert (await cluster.manager.stores.sessions.audit()).is_clean
    assert agent.kernels == {}


async def test_policies_bound_sessions(cluster: Cluster, agent: FakeAgent) -> None:
    policy = (await cluster.manager.stores.identities.policies(name="default"))[0]
    limited = ResourcePolicy(
        name="default", created_at=policy.created_at, max_concurrent_sessions=1, max_containers_per_session=1
    )
    await cluster.manager.stores.identities.put(limited)
    sessions = cluster.manager.services.sessions
    with pytest.raises(LimitExceeded):
        await sessions.create(cluster.user, request(cluster_size=2))
    await sessions.create(cluster.user, request())
    with pytest.raises(LimitExceeded):
        await sessions.create(cluster.user, request())


async def test_a_policy_with_zero_kernels_in_a_session_bounds_none(cluster: Cluster, agent: FakeAgent) -> None:
    policy = (await cluster.manager.stores.identities.policies(name="default"))[0]
    unlimited = ResourcePolicy(name="default", created_at=policy.created_at, max_containers_per_session=0)
    await cluster.manager.stores.identities.put(unlimited)
    reply = await cluster.manager.services.sessions.create(cluster.user, request(cluster_size=2, enqueue_only=True))
    assert len(reply.session.kernels) == 2


async def test_the_resource_group_bounds_types_and_priorities(cluster: Cluster, agent: FakeAgent) -> None:
    sessions, groups = cluster.manager.services.sessions, cluster.manager.stores.resource_groups
    usual = (await sessions.create(cluster.user, request(enqueue_only=True))).session
    modest = (await sessions.create(cluster.user, request(enqueue_only=True, priority=3))).session
    urgent = (await sessions.create(cluster.admin, request(enqueue_only=True, priority=90))).session
    assert (usual.priority, modest.priority, urgent.priority) == (10, 3, 90)
    with pytest.raises(InvalidInput) as refused:
        await sessions.create(cluster.user, request(priority=11))
    assert refused.value.data == {"priority": "too large", "max": 10}
    group = await groups.resource_group(usual.scaling_group)
    assert group is not None
    options = {"max_priority": 5, "allowed_session_types": ["batch"]}
    await groups.put_resource_group(replace(group, scheduler_opts=options))
    with pytest.raises(InvalidInput, match="of type batch only"):
        await sessions.create(cluster.user, request())
    batch = request(type=SessionType.BATCH, startup_command="true", enqueue_only=True)
    assert (await sessions.create(cluster.user, batch)).session.priority == 5


async def test_dependencies_gate_and_cancel(cluster: Cluster, agent: FakeAgent) -> None:
    sessions = cluster.manager.services.sessions
    first = await sessions.create(cluster.user, request(name="first"))
    later = await sessions.create(cluster.user, request(name="later", dependencies=("first",), max_wait_s=0.2))
    assert later.status == "TIMEOUT"
    graph = await sessions.dependency_graph(cluster.user, "later")
    assert [n.session.id for n in graph.depends_on] == [first.session.id]
    await sessions.destroy(cluster.user, "first")
    running = await cluster.manager.services.writer.wait_until(
        later.session.id, lambda s: s.started_at is not None, timeout_s=5
    )
    assert running is not None
    await sessions.create(cluster.user, request(name="base", starts_at="1h", enqueue_only=True))
    top = await sessions.create(cluster.user, request(name="toppp", dependencies=("base",), enqueue_only=True))
    end = await sessions.destroy(cluster.user, "base", recursive=True)
    assert top.session.id in end.destroyed
    assert (await sessions.get(cluster.user, str(top.session.id))).status is SessionStatus.CANCELLED


def test_starting_times_are_read() -> None:
    from datetime import UTC, datetime

    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert parse_start("1.5h", now) == now + timedelta(hours=1.5)
    assert parse_start("2026-01-02T00:00:00", now) == now + timedelta(days=1)
    assert parse_start("2026-01-02T09:00:00+09:00", now) == now + timedelta(days=1)
