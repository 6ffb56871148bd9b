"""The contract of every store of agents for their states."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from ai.backend.common.states import AgentStatus
from ai.backend.infra.database import Database
from ai.backend.manager.agents.memory import MemoryAgentStore
from ai.backend.manager.agents.sql import SqlAgentStore
from ai.backend.manager.agents.store import AgentStore
from tests.contract.store.builders import AGENT, NOW, make_agent
from tests.support.migrated import migrated
from tests.support.postgres import emptied, migrated_template, shared_server


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AgentStore]:
    if request.param == "memory":
        yield MemoryAgentStore()
        return
    url = f"sqlite:///{migrated(tmp_path / 'manager.db')}"
    if request.param == "postgres":
        server = shared_server()
        url = server.url(emptied(server, migrated_template()))
    database = Database(url)
    yield SqlAgentStore(database)
    await database.close()


async def test_states_follow_what_changes_of_agents(store: AgentStore) -> None:
    await store.put_agent(make_agent())
    await store.put_agent(make_agent("agent-0"))
    before = await store.states()
    assert {agent_id: state.status for agent_id, state in before.items()} == {
        "agent-0": AgentStatus.ALIVE,
        "agent-1": AgentStatus.ALIVE,
    }
    assert (before[AGENT].schedulable, before[AGENT].scaling_group) == (True, "default")
    await store.change(AGENT, last_heartbeat=NOW + timedelta(minutes=1))
    assert await store.states() == before, "a heartbeat changes nothing"
    await store.set_status(AGENT, AgentStatus.LOST, at=NOW)
    await store.change(AGENT, schedulable=False)
    lost = (await store.states())[AGENT]
    assert (lost.status, lost.schedulable) == (AgentStatus.LOST, False)
    await store.put_agent(make_agent())
    assert (await store.states())[AGENT].version_id > before[AGENT].version_id, "a report counts"
