"""The database is older than the agents: it comes from a backup, or lost its newest commits with the power."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sqlalchemy import update

from ai.backend.common.states import KernelStatus, SessionStatus
from ai.backend.infra.database import Database
from ai.backend.manager.sessions.model import CreateSession, Session
from ai.backend.manager.sessions.tables import kernels, sessions
from tests.component.manager.conftest import SETTINGS, Cluster, start_manager
from tests.component.manager.fakes import FakeAgent


async def _running(cluster: Cluster) -> Session:
    reply = await cluster.manager.services.sessions.create(cluster.user, CreateSession(image="python", max_wait_s=30))
    assert reply.status == "RUNNING"
    await asyncio.sleep(0.02)  # longer than the grace of these tests
    return reply.session


async def _set_back(database: Database, session: Session, status: str) -> None:
    await database.execute(update(sessions).where(sessions.c.id == session.id).values(status=SessionStatus(status)))
    await database.execute(
        update(kernels).where(kernels.c.session_id == session.id).values(status=KernelStatus(status))
    )


async def _restart(cluster: Cluster, agent: FakeAgent, folder: Path) -> None:
    """Starts another manager on the database, and connects the agent to it."""
    await cluster.link.manager.stop()
    await cluster.manager.stop()
    await cluster.database.close()
    started = await start_manager(folder / "manager.db", cluster.link, SETTINGS, cluster.clock)
    cluster.manager, cluster.database = started
    await cluster.join(agent)


async def _stored(cluster: Cluster, session: Session) -> Session:
    return await cluster.manager.services.sessions.get(cluster.user, str(session.id))


async def test_a_kernel_whose_start_is_forgotten_is_reported_again(
    cluster: Cluster, agent: FakeAgent, tmp_path: Path
) -> None:
    session = await _running(cluster)
    await _set_back(cluster.database, session, "CREATING")
    await _restart(cluster, agent, tmp_path)
    assert (await _stored(cluster, session)).status == "CREATING"
    await agent.beat()
    assert (await _stored(cluster, session)).status == "RUNNING"
    assert session.kernels[0].id.hex == next(iter(agent.kernels)).replace("-", "")


async def test_a_kernel_that_was_restarted_since_keeps_its_attempt(
    cluster: Cluster, agent: FakeAgent, tmp_path: Path
) -> None:
    session = await _running(cluster)
    held = next(iter(agent.kernels.values()))
    held.attempt += 2
    await _restart(cluster, agent, tmp_path)
    await agent.beat()
    stored = await _stored(cluster, session)
    assert (stored.status, stored.kernels[0].attempt) == ("RUNNING", held.attempt)
    assert agent.kernels


async def test_a_kernel_that_the_database_does_not_know_is_ended(
    cluster: Cluster, agent: FakeAgent, tmp_path: Path
) -> None:
    session = await _running(cluster)
    await cluster.database.run_write(lambda c: c.execute(sessions.delete().where(sessions.c.id == session.id)))
    await _restart(cluster, agent, tmp_path)
    assert not agent.kernels
