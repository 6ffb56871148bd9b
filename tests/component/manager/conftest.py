"""A real manager on a real SQLite file, with fake agents on the in-memory link."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ai.backend.common.ids import AgentId
from ai.backend.infra.bus import Bus
from ai.backend.infra.clock import Clock, SystemClock
from ai.backend.infra.database import Database
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.agents.settings import AgentSettings
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.sessions.settings import SessionSettings
from tests.component.manager.fakes import FakeAgent
from tests.support.migrated import migrated


class SettableClock(SystemClock):
    """The system's, but for what a test adds to both of its faces, in seconds."""

    def __init__(self) -> None:
        self.set_forward = self.passed = 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.set_forward + self.passed)

    def monotonic(self) -> float:
        return super().monotonic() + self.passed


@dataclass
class Cluster:
    """A started manager and what a test does to it."""

    manager: Manager
    link: MemoryLink
    database: Database
    admin: Caller
    user: Caller
    clock: SettableClock = field(default_factory=SettableClock)

    async def join(self, agent: FakeAgent) -> FakeAgent:
        endpoint = self.link.agent_endpoint(agent.agent_id)
        await endpoint.start(agent)
        agent.reports = endpoint.reports
        await agent.beat()
        return agent

    async def leave(self, agent: FakeAgent) -> None:
        await self.link.agent_endpoint(agent.agent_id).stop()

    def hush(self, agent: FakeAgent) -> None:
        """The agent was last heard 100 s ago, by a manager that has been awake for longer."""
        self.manager.registry.last_seen[AgentId(agent.agent_id)] -= 100
        self.manager.loops.watchdog._resumed_at -= 200


SETTINGS = ManagerSettings(
    sessions=SessionSettings(retry_backoff_s=0.05, destroy_wait_s=5.0),
    agents=AgentSettings(presence_grace_s=0.01, abandon_s=0.3, abandon_terminating_s=0.1),
)

Restart = Callable[[], Awaitable[Cluster]]


async def start_manager(
    path: Path, link: MemoryLink, settings: ManagerSettings, clock: Clock | None = None
) -> tuple[Manager, Database]:
    database = Database(f"sqlite:///{migrated(path)}")
    manager = Manager(settings, database, Bus(), link.manager, clock=clock, hash_password=str)
    await manager.start()
    await link.manager.start(manager.reports)
    return manager, database


async def kill(manager: Manager) -> None:
    """Ends all tasks of a manager as a crash does: nothing is flushed, no delivery is finished."""
    deliveries = [task for _, task in manager.loops.webhooks._busy.values()]
    await cancel_all(*manager._leader_tasks, *manager._tasks, *deliveries)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    link, clock = MemoryLink(), SettableClock()
    manager, database = await start_manager(tmp_path / "manager.db", link, SETTINGS, clock)
    made = await manager.bootstrap.run()
    assert made.admin is not None
    assert made.user is not None
    admin = await manager.services.identity.credentials(made.admin.access_key)
    user = await manager.services.identity.credentials(made.user.access_key)
    assert admin is not None
    assert user is not None
    cluster = Cluster(manager, link, database, admin.caller, user.caller, clock)
    yield cluster
    await link.manager.stop()
    await cluster.manager.stop()
    await cluster.database.close()


@pytest.fixture
async def agent(cluster: Cluster) -> AsyncIterator[FakeAgent]:
    agent = FakeAgent()
    await cluster.join(agent)
    yield agent
    await agent.close()
