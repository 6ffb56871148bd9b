"""Agents that refuse, fall silent, forget or lie, and managers that begin again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ai.backend.common.errors import Conflict, CreationDeferred, CreationDenied, SessionNotFound
from ai.backend.common.ids import AgentId
from ai.backend.common.states import (
    AgentStatus,
    KernelEventReason,
    KernelStatus,
    SessionResult,
    SessionStatus,
    SessionType,
)
from ai.backend.common.wire.agent import KernelSpec
from ai.backend.common.wire.reports import ObservationReport
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.manager.sessions.changes import ObservationAck
from ai.backend.manager.sessions.model import CreateSession, Session
from tests.component.manager.conftest import SETTINGS, Cluster, kill, start_manager
from tests.component.manager.fakes import FakeAgent, Held

PYTHON = CreateSession(image="python")


async def _until(cluster: Cluster, session: Session, *statuses: SessionStatus) -> Session:
    reached = await cluster.manager.services.writer.wait_until(session.id, lambda s: s.status in statuses, timeout_s=8)
    assert reached is not None, f"not {statuses}"
    return reached


async def test_a_denied_creation_is_an_error_with_its_reason(cluster: Cluster, agent: FakeAgent) -> None:
    agent.refuse = lambda _: CreationDenied("no licence")
    reply = await cluster.manager.services.sessions.create(cluster.user, PYTHON)
    assert reply.status == "ERROR"
    assert reply.session.status_data["error"]["message"] == "no licence"
    assert (await cluster.manager.stores.sessions.audit()).is_clean


async def test_a_deferred_creation_is_placed_again(cluster: Cluster, agent: FakeAgent) -> None:
    seen: list[int] = []

    def defer_once(spec: KernelSpec) -> CreationDeferred | None:
        seen.append(spec.attempt)
        return CreationDeferred("later", retry_after=0.05) if len(seen) == 1 else None

    agent.refuse = defer_once
    reply = await cluster.manager.services.sessions.create(cluster.user, PYTHON)
    assert reply.status == "RUNNING"
    assert seen == [1, 2]


async def test_the_words_of_a_refusal_outlive_the_end_of_the_attempt(cluster: Cluster, agent: FakeAgent) -> None:
    agent.refuse = lambda _: CreationDeferred("all licences are in use", retry_after=60)
    queued = CreateSession(image="python", enqueue_only=True)
    session = (await cluster.manager.services.sessions.create(cluster.user, queued)).session
    told = "all licences are in use"
    refused = await cluster.manager.services.writer.wait_until(session.id, lambda s: s.status_info == told, timeout_s=8)
    assert refused is not None
    await agent.tell(str(session.id), 1, KernelStatus.TERMINATED)
    now = await cluster.manager.services.sessions.get(cluster.user, str(session.id))
    assert (now.status, now.status_info, now.main.status_info) == (SessionStatus.PENDING, told, told)


async def test_deferring_for_ever_ends_in_error(cluster: Cluster, agent: FakeAgent) -> None:
    agent.refuse = lambda _: CreationDeferred("later", retry_after=0.01)
    reply = await cluster.manager.services.sessions.create(cluster.user, PYTHON)
    assert reply.status == "ERROR"
    assert (await cluster.manager.stores.sessions.audit()).is_clean


async def test_old_attempts_say_nothing(cluster: Cluster, agent: FakeAgent) -> None:
    reply = await cluster.manager.services.sessions.create(cluster.user, PYTHON)
    kernel = reply.session.main
    await agent.tell(str(kernel.id), kernel.attempt + 7, KernelStatus.TERMINATED)
    agent.kernels[str(kernel.id)] = Held(agent.created[0], kernel.attempt, KernelStatus.RUNNING)
    assert (await cluster.manager.services.sessions.get(cluster.user, str(kernel.id))).status is SessionStatus.RUNNING
    other = FakeAgent(agent_id="agent-2")
    await cluster.join(other)
    await other.tell(str(kernel.id), kernel.attempt, KernelStatus.TERMINATED)
    assert (await cluster.manager.services.sessions.get(cluster.user, str(kernel.id))).status is SessionStatus.RUNNING


async def test_observations_are_applied_once(cluster: Cluster, agent: FakeAgent) -> None:
    agent.stall = True
    queued = await cluster.manager.services.sessions.create(
        cluster.user, CreateSession(image="python", enqueue_only=True)
    )
    await _until(cluster, queued.session, SessionStatus.PREPARING)
    kernel = str(queued.session.id)
    batch = [agent.observation(kernel, 1, s) for s in (KernelStatus.CREATING, KernelStatus.RUNNING)]
    report = ObservationReport(agent_id="agent-1", epoch=1, observations=batch)
    assert await cluster.manager.reports.observe(report) == 2
    before = await cluster.manager.stores.sessions.last_event_id()
    assert await cluster.manager.reports.observe(report) == 2
    assert await cluster.manager.stores.sessions.last_event_id() == before
    ack = await cluster.manager.stores.sessions.acked(AgentId("agent-1"))
    assert ack == ObservationAck(agent_id=AgentId("agent-1"), epoch=1, seq=2)


async def test_a_lost_agent_degrades_and_is_given_up(cluster: Cluster, agent: FakeAgent) -> None:
    reply = await cluster.manager.services.sessions.create(cluster.user, PYTHON)
    sweep = cluster.manager.loops.watchdog
    cluster.hush(agent)
    await sweep.once()
    degraded = await cluster.manager.services.sessions.get(cluster.user, str(reply.session.id))
    assert degraded.status is SessionStatus.RUNNING_DEGRADED
    await agent.beat()
    await sweep.once()
    back = await cluster.manager.services.sessions.get(cluster.user, str(reply.session.id))
    assert back.status is SessionStatus.RUNNING
    cluster.hush(agent)
    await sweep.once()
    await asyncio.sleep(0.35)
    await sweep.once()
    ended = await cluster.manager.services.sessions.get(cluster.user, str(reply.session.id))
    assert ended.status is SessionStatus.ERROR
    assert ended.reason is KernelEventReason.AGENT_LOST
    assert ended.status_info == "agent-lost"
    for status_data in (ended.status_data, ended.kernels[0].status_data):
        assert status_data["error"]["agent"] == "agent-1"
        assert "home is lost" in status_data["error"]["message"]
    assert (await cluster.manager.stores.sessions.audit()).is_clean
    assert await agent.beat() == [str(reply.session.id)], "what it still holds is an orphan"


async def test_a_session_starting_on_a_lost_agent_moves(cluster: Cluster, agent: FakeAgent) -> None:
    agent.stall = True
    queued = await cluster.manager.services.sessions.create(
        cluster.user, CreateSession(image="python", enqueue_only=True)
    )
    await _until(cluster, queued.session, SessionStatus.PREPARING)
    other = await cluster.join(FakeAgent(agent_id="agent-2"))
    await cluster.leave(agent)
    cluster.hush(agent)
    await cluster.manager.loops.watchdog.once()
    moved = await _until(cluster, queued.session, SessionStatus.RUNNING)
    assert moved.main.agent == "agent-2"
    assert moved.main.attempt == 2
    await cluster.link.agent_endpoint(agent.agent_id).start(agent)
    assert await agent.beat() == [str(queued.session.id)]
    assert (await cluster.manager.stores.sessions.audit()).is_clean
    await other.close()


async def test_a_kernel_that_the_agent_forgot_ends(cluster: Cluster, agent: FakeAgent) -> None:
    reply = await cluster.manager.services.sessions.create(cluster.user, PYTHON)
    agent.kernels.clear()
    await asyncio.sleep(0.02)
    await agent.beat()
    still = await cluster.manager.services.sessions.get(cluster.user, str(reply.session.id))
    assert still.status is SessionStatus.RUNNING, "one heartbeat proves nothing"
    await agent.beat()
    gone = await cluster.manager.services.sessions.get(cluster.user, str(reply.session.id))
    assert gone.status is SessionStatus.ERROR
    assert gone.reason is KernelEventReason.WORKLOAD_NOT_FOUND


async def test_ending_on_a_dead_agent_is_given_up(cluster: Cluster, agent: FakeAgent) -> None:
    reply = await cluster.manager.services.sessions.create(cluster.user, PYTHON)
    await cluster.leave(agent)
    cluster.hush(agent)
    await cluster.manager.loops.watchdog.once()
    asked = asyncio.create_task(cluster.manager.services.sessions.destroy(cluster.user, str(reply.session.id)))
    await _until(cluster, reply.session, SessionStatus.TERMINATING)
    await asyncio.sleep(0.12)
    await cluster.manager.loops.terminate.once()
    assert (await asked).session.status is SessionStatus.TERMINATED
    assert (await cluster.manager.stores.sessions.audit()).is_clean


async def test_restart_in_place(cluster: Cluster, agent: FakeAgent) -> None:
    sessions = cluster.manager.services.sessions
    reply = await sessions.create(cluster.user, PYTHON)
    back = await sessions.restart(cluster.user, str(reply.session.id))
    assert back.status is SessionStatus.RUNNING
    assert back.main.attempt == reply.session.main.attempt + 1
    assert back.main.agent == reply.session.main.agent
    await sessions.destroy(cluster.user, str(back.id))
    with pytest.raises(Conflict):
        await sessions.restart(cluster.user, str(back.id))


async def test_a_batch_session_tells_its_result(cluster: Cluster, agent: FakeAgent) -> None:
    for code, result in ((0, SessionResult.SUCCESS), (3, SessionResult.FAILURE)):
        batch = CreateSession(image="python", type=SessionType.BATCH, startup_command="make")
        reply = await cluster.manager.services.sessions.create(cluster.user, batch)
        kernel = reply.session.main
        await agent.tell(
            str(kernel.id),
            kernel.attempt,
            KernelStatus.TERMINATED,
            reason=KernelEventReason.TASK_FINISHED,
            exit_code=code,
            log_tail=b"made\n",
        )
        ended = await cluster.manager.services.sessions.get(cluster.user, str(kernel.id))
        assert (ended.result, ended.main.exit_code) == (result, code)
        names = [e.name for e in await cluster.manager.stores.sessions.events_after(0)]
        assert f"session_{result.value.lower()}" in names
        assert await cluster.manager.services.execution.logs(cluster.user, str(kernel.id)) == "made\n"


async def test_an_agent_writes_no_log_of_a_kernel_of_another_one(cluster: Cluster, agent: FakeAgent) -> None:
    other = await cluster.join(FakeAgent(agent_id="agent-2"))
    batch = CreateSession(image="python", type=SessionType.BATCH, startup_command="make")
    kernel = (await cluster.manager.services.sessions.create(cluster.user, batch)).session.main
    own, foreign = (agent, other) if kernel.agent == agent.agent_id else (other, agent)
    for sender, tail in ((own, b"made\n"), (foreign, b"forged\n")):
        await sender.tell(
            str(kernel.id),
            kernel.attempt,
            KernelStatus.TERMINATED,
            reason=KernelEventReason.TASK_FINISHED,
            exit_code=0,
            log_tail=tail,
        )
    assert await cluster.manager.services.execution.logs(cluster.user, str(kernel.id)) == "made\n"


async def test_others_do_not_see_it(cluster: Cluster, agent: FakeAgent) -> None:
    sessions = cluster.manager.services.sessions
    mine = await sessions.create(cluster.admin, CreateSession(image="python", name="secret"))
    for ref in ("secret", str(mine.session.id), str(mine.session.id)[:8]):
        with pytest.raises(SessionNotFound):
            await sessions.get(cluster.user, ref)
        with pytest.raises(SessionNotFound):
            await sessions.destroy(cluster.user, ref)
    theirs = await sessions.create(cluster.user, CreateSession(image="python", name="theirs"))
    assert (await sessions.get(cluster.admin, "theirs")).id == theirs.session.id
    for_user = CreateSession(image="python", owner_access_key=cluster.user.access_key)
    made = await sessions.create(cluster.admin, for_user)
    assert made.session.access_key == cluster.user.access_key
    assert made.session.created_by == cluster.admin.access_key


@pytest.mark.parametrize("stop_at", [SessionStatus.PENDING, SessionStatus.PREPARING, SessionStatus.TERMINATING])
async def test_a_new_manager_goes_on_where_the_old_one_ended(tmp_path: Path, stop_at: SessionStatus) -> None:
    """The old one simply vanishes: nothing of it is stopped in an orderly way but its tasks."""
    link = MemoryLink()
    agent = FakeAgent(stall=True)
    manager, database = await start_manager(tmp_path / "m.db", link, SETTINGS)
    made = await manager.bootstrap.run()
    assert made.user is not None
    found = await manager.services.identity.credentials(made.user.access_key)
    assert found is not None
    caller = found.caller
    cluster = Cluster(manager=manager, link=link, database=database, admin=caller, user=caller)
    await cluster.join(agent)
    if stop_at is SessionStatus.PENDING:
        agent.slots = {}
        await cluster.leave(agent)
    reply = await manager.services.sessions.create(
        caller, CreateSession(image="python", name="lives", enqueue_only=True)
    )
    if stop_at is not SessionStatus.PENDING:
        await _until(cluster, reply.session, SessionStatus.PREPARING)
    if stop_at is SessionStatus.TERMINATING:
        agent.deaf = True
        await agent.run_up(agent.created[0])
        asked = asyncio.create_task(manager.services.sessions.destroy(caller, "lives"))
        await _until(cluster, reply.session, SessionStatus.TERMINATING)
        asked.cancel()
    await kill(manager)
    await link.manager.stop()
    await manager.stop()
    await database.close()

    agent.deaf = agent.stall = False
    agent.slots = FakeAgent().slots
    manager, database = await start_manager(tmp_path / "m.db", link, SETTINGS)
    cluster = Cluster(manager=manager, link=link, database=database, admin=caller, user=caller)
    await cluster.join(agent)
    if stop_at is SessionStatus.PREPARING:
        await agent.run_up(agent.created[0])
    goal = SessionStatus.TERMINATED if stop_at is SessionStatus.TERMINATING else SessionStatus.RUNNING
    await asyncio.sleep(1.05)
    await manager.loops.terminate.once()
    await _until(cluster, reply.session, goal)
    assert (await manager.stores.sessions.audit()).is_clean
    await link.manager.stop()
    await agent.close()
    await manager.stop()
    await database.close()


async def test_agents_of_unknown_resource_groups_are_refused(cluster: Cluster) -> None:
    from ai.backend.common.errors import NotFound

    with pytest.raises(NotFound):
        await cluster.join(FakeAgent(resource_group="nowhere"))
    assert (await cluster.manager.stores.agents.agents()) == []
    agent = await cluster.join(FakeAgent())
    assert [a.status for a in await cluster.manager.stores.agents.agents()] == [AgentStatus.ALIVE]
    assert {s.slot_name for s in cluster.manager.services.resources.slot_types()} == {"cpu", "mem", "mock.device"}
    await agent.close()
