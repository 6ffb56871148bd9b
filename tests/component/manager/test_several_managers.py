"""Two managers of one PostgreSQL: what is asked of the one that does not lead is done at once.

No loop of theirs looks around by itself here, so what happens has been told from one to the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from ai.backend.common.errors import Conflict
from ai.backend.common.states import SessionStatus
from ai.backend.infra.bus import Bus
from ai.backend.infra.database import Database
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.sessions.model import CreateSession
from ai.backend.manager.tasks.model import TaskStatus
from ai.backend.manager.tasks.service import TaskProgress
from tests.component.manager.conftest import SETTINGS
from tests.component.manager.fakes import FakeAgent
from tests.support.postgres import emptied, migrated_template, shared_server

pytestmark = pytest.mark.needs("postgres")
_NEVER_S = 3600.0


class TwinBus(Bus):
    """Of two processes: the other one hears the topic, as over Redis."""

    def __init__(self) -> None:
        super().__init__()
        self.other: Bus | None = None

    def publish(self, topic: str, payload: Any = None) -> None:
        super().publish(topic, payload)
        if self.other is not None:
            Bus.publish(self.other, topic)


@dataclass
class Pair:
    leader: Manager
    follower: Manager
    user: Caller


async def _until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # of loops that tell nobody
            await asyncio.sleep(0.01)


@pytest.fixture
async def agent() -> FakeAgent:
    return FakeAgent()


@pytest.fixture
async def pair(agent: FakeAgent) -> AsyncIterator[Pair]:
    server = shared_server()
    url = server.url(emptied(server, migrated_template()))
    databases, buses, links = [Database(url), Database(url)], [TwinBus(), TwinBus()], [MemoryLink(), MemoryLink()]
    buses[0].other, buses[1].other = buses[1], buses[0]
    managers = [
        Manager(SETTINGS, database, bus, link.manager)
        for database, bus, link in zip(databases, buses, links, strict=True)
    ]
    for manager, link in zip(managers, links, strict=True):
        for loop in manager.loops:
            vars(loop)["period_s"] = _NEVER_S
        await manager.start()
        await link.manager.start(manager.reports)
        await _until(lambda: managers[0]._leader_tasks)
    made = await managers[0].bootstrap.run()
    assert made.user is not None
    user = await managers[0].services.identity.credentials(made.user.access_key)
    assert user is not None
    for link in links:
        endpoint = link.agent_endpoint(agent.agent_id)
        await endpoint.start(agent)
        agent.reports = endpoint.reports
        await agent.beat()
    yield Pair(managers[0], managers[1], user.caller)
    await agent.close()
    for manager, link, database in zip(managers, links, databases, strict=True):
        await link.manager.stop()
        await manager.stop()
        await database.close()


async def test_the_leader_places_and_ends_what_another_manager_was_asked_for(pair: Pair, agent: FakeAgent) -> None:
    vars(pair.leader.loops.schedule)["period_s"] = _NEVER_S
    services = pair.follower.services
    async with asyncio.timeout(30):
        reply = await services.sessions.create(pair.user, CreateSession(image="python", name="first"))
        assert (reply.status, len(agent.created)) == ("RUNNING", 1)
        agent.deaf = True
        ending = asyncio.create_task(services.sessions.destroy(pair.user, "first"))
        await _until(lambda: agent.destroyed)
        assert [d.kernel_id for d in agent.destroyed] == [str(reply.session.main.id)]
        agent.deaf = False
        await agent.destroy_kernel(agent.destroyed[0])
        assert (await ending).session.status is SessionStatus.TERMINATED
    assert (await pair.leader.stores.sessions.audit()).is_clean


async def test_a_task_is_known_and_cancelled_through_any_manager(pair: Pair) -> None:
    ours, other = pair.leader.services.tasks, pair.follower.services.tasks
    started = asyncio.Event()

    async def work(progress: TaskProgress) -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    async with asyncio.timeout(30):
        task_id = await ours.start(pair.user, "one", work, subject="a thing")
        await started.wait()
        assert await other.is_under_way("a thing")
        with pytest.raises(Conflict) as refused:
            await other.start(pair.user, "two", work, subject="a thing")
        assert refused.value.data["task"] == str(task_id)
        await other.start(pair.user, "three", work, subject="another thing")
        await other.cancel(pair.user, task_id)
        states = [task.status async for task in other.subscribe(pair.user, task_id)]
    assert states[-1] is TaskStatus.CANCELLED
    assert not await other.is_under_way("a thing")
    assert await other.is_under_way("another thing")
    await other.cancel(pair.user, task_id)  # it has ended: nothing happens
    await other.start(pair.user, "four", work, subject="a thing")
