"""Draining one device: its sessions end or wait again, the others of the node go on."""

from __future__ import annotations

import pytest

from ai.backend.common.errors import Conflict, Forbidden
from ai.backend.common.ids import SessionId
from ai.backend.common.states import KernelEventReason, SessionStatus, SessionType
from ai.backend.common.wire.agent import OperateDevice
from tests.component.manager.conftest import Cluster
from tests.component.manager.test_variants import GpuAgent, request


def drain(device_id: str) -> OperateDevice:
    return OperateDevice(device_name="cuda", device_id=device_id, action="drain", argument="ECC errors")


@pytest.fixture
async def node(cluster: Cluster) -> GpuAgent:
    agent = GpuAgent(agent_id="i-01", gpus=[("8.0", "A100")] * 3)
    await cluster.join(agent)
    return agent


async def test_only_the_sessions_on_the_drained_device_end(cluster: Cluster, node: GpuAgent) -> None:
    sessions, agents = cluster.manager.services.sessions, cluster.manager.services.agents
    made = [(await sessions.create(cluster.user, request())).session for _ in range(3)]
    (device_id,) = made[1].main.devices["cuda.device"]
    done = await agents.operate_device(cluster.admin, "i-01", drain(device_id))
    assert done.device_id == f"{device_id}:cordon:ECC errors", "the agent is asked for a cordon"
    ended = await sessions.writer.wait_until(
        SessionId(made[1].id), lambda session: session.status is SessionStatus.TERMINATED, timeout_s=20
    )
    assert ended is not None
    assert ended.reason is KernelEventReason.PREEMPTED
    for other in (made[0], made[2]):
        assert (await sessions.get(cluster.user, str(other.id))).status is SessionStatus.RUNNING


async def test_batch_sessions_start_over_where_that_is_asked_for(cluster: Cluster, node: GpuAgent) -> None:
    sessions, agents = cluster.manager.services.sessions, cluster.manager.services.agents
    batch = request(type=SessionType.BATCH, startup_command="sleep 60")
    interactive = (await sessions.create(cluster.user, request())).session
    repeated = (await sessions.create(cluster.user, batch)).session
    for session in (interactive, repeated):
        (device_id,) = session.main.devices["cuda.device"]
        await agents.operate_device(cluster.admin, "i-01", drain(device_id), start_over=True)
    last = await sessions.writer.wait_until(
        SessionId(interactive.id), lambda session: session.status is SessionStatus.TERMINATED, timeout_s=20
    )
    assert last is not None
    again = await sessions.writer.wait_until(
        SessionId(repeated.id),
        lambda session: session.main.attempt > repeated.main.attempt or session.status is SessionStatus.PENDING,
        timeout_s=20,
    )
    assert again is not None
    assert not again.status.is_final


async def test_who_may_not_operate_devices_drains_nothing(cluster: Cluster, node: GpuAgent) -> None:
    sessions, agents = cluster.manager.services.sessions, cluster.manager.services.agents
    held = (await sessions.create(cluster.user, request())).session
    (device_id,) = held.main.devices["cuda.device"]
    with pytest.raises(Forbidden):
        await agents.operate_device(cluster.user, "i-01", drain(device_id))
    with pytest.raises(Conflict):  # the agent refuses the cordon
        await agents.operate_device(cluster.admin, "i-01", drain("busy"))
    assert (await sessions.get(cluster.user, str(held.id))).status is SessionStatus.RUNNING
