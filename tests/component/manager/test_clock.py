"""The wall clock is set while sessions live: deadlines follow the monotonic clock."""

from __future__ import annotations

import pytest

from ai.backend.common.errors import CreationDeferred
from ai.backend.common.states import SessionStatus
from ai.backend.manager.sessions.model import CreateSession, Session
from tests.component.manager.conftest import Cluster
from tests.component.manager.fakes import FakeAgent

S = SessionStatus
DAY_S = 86_400.0
QUEUED = CreateSession(image="python", enqueue_only=True)


async def begin(cluster: Cluster) -> Session:
    return (await cluster.manager.services.sessions.create(cluster.user, QUEUED)).session


async def until(cluster: Cluster, session: Session, status: SessionStatus) -> Session:
    found = await cluster.manager.services.writer.wait_until(session.id, lambda s: s.status is status, timeout_s=8)
    assert found is not None
    assert found.status is status
    return found


async def status(cluster: Cluster, session: Session) -> SessionStatus:
    return (await cluster.manager.services.sessions.get(cluster.user, str(session.id))).status


async def look(cluster: Cluster) -> None:
    for loop in (cluster.manager.loops.watchdog, cluster.manager.loops.terminate):
        await loop.once()


@pytest.mark.parametrize("step_s", [DAY_S, -DAY_S])
async def test_a_start_is_late_by_the_time_that_passed(cluster: Cluster, agent: FakeAgent, step_s: float) -> None:
    agent.stall = True
    session = await begin(cluster)
    await until(cluster, session, S.PREPARING)
    await look(cluster)
    cluster.clock.set_forward = step_s
    await look(cluster)
    assert await status(cluster, session) is S.PREPARING
    cluster.clock.passed = cluster.manager.settings.sessions.start_timeout_s + 1
    await agent.beat()
    await look(cluster)
    assert await status(cluster, session) in (S.TERMINATING, S.TERMINATED, S.CANCELLED, S.ERROR)


@pytest.mark.parametrize("step_s", [DAY_S, -DAY_S])
async def test_an_end_is_forced_after_the_time_that_passed(cluster: Cluster, agent: FakeAgent, step_s: float) -> None:
    session = await begin(cluster)
    await until(cluster, session, S.RUNNING)
    agent.deaf = True
    await cluster.manager.services.sessions.destroy(cluster.user, str(session.id))
    await look(cluster)
    cluster.clock.set_forward = step_s
    await look(cluster)
    assert await status(cluster, session) is S.TERMINATING
    assert not any(request.forced for request in agent.destroyed)
    cluster.clock.passed = cluster.manager.settings.sessions.terminate_timeout_s + 1
    await agent.beat()
    await look(cluster)
    assert agent.destroyed[-1].forced
    await until(cluster, session, S.TERMINATED)


async def test_a_lost_agent_is_waited_for_the_time_that_passed(cluster: Cluster, agent: FakeAgent) -> None:
    cluster.manager.loops.watchdog.agent_settings = cluster.manager.settings.agents.model_copy(
        update={"abandon_s": 600.0}
    )
    session = await begin(cluster)
    await until(cluster, session, S.RUNNING)
    cluster.clock.passed = cluster.manager.settings.agents.heartbeat_timeout_s + 1
    await look(cluster)
    assert await status(cluster, session) is S.RUNNING_DEGRADED
    cluster.clock.set_forward = DAY_S
    await look(cluster)
    assert await status(cluster, session) is S.RUNNING_DEGRADED
    await agent.beat()
    await look(cluster)
    assert await status(cluster, session) is S.RUNNING


async def test_a_pause_is_not_prolonged_by_a_clock_that_is_set_back(cluster: Cluster, agent: FakeAgent) -> None:
    agent.refuse = lambda spec: CreationDeferred("later", retry_after=1.0) if spec.attempt == 1 else None
    session = await begin(cluster)
    waiting = await cluster.manager.services.writer.wait_until(
        session.id, lambda s: s.not_before is not None, timeout_s=8
    )
    assert waiting is not None
    cluster.clock.set_forward = -DAY_S
    await cluster.manager.loops.schedule.once()
    await until(cluster, session, S.RUNNING)


async def test_a_missing_kernel_is_missed_whatever_the_clock_says(cluster: Cluster, agent: FakeAgent) -> None:
    session = await begin(cluster)
    await until(cluster, session, S.RUNNING)
    cluster.clock.set_forward = -DAY_S
    agent.kernels.clear()
    for _ in range(2):
        await agent.beat()
    assert await status(cluster, session) is S.ERROR
