"""The contract of every store of leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ai.backend.common.errors import Conflict
from ai.backend.common.ids import AgentId
from ai.backend.infra.database import Database
from ai.backend.manager.agents.memory import MemoryAgentStore
from ai.backend.manager.agents.sql import SqlAgentStore
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.leadership.memory import MemoryLeaseStore
from ai.backend.manager.leadership.sql import SqlLeaseStore
from ai.backend.manager.leadership.store import LeaseStore
from tests.contract.store.builders import make_agent
from tests.support.migrated import migrated
from tests.support.postgres import emptied, migrated_template, shared_server

Both = tuple[LeaseStore, AgentStore]


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Both]:
    """Leases, and something else that is written to the same database."""
    if request.param == "memory":
        yield MemoryLeaseStore(), MemoryAgentStore()
        return
    url = f"sqlite:///{migrated(tmp_path / 'manager.db')}" if request.param == "sqlite" else _postgres()
    database = Database(url)
    yield SqlLeaseStore(database), SqlAgentStore(database)
    await database.close()


def _postgres() -> str:
    server = shared_server()
    return server.url(emptied(server, migrated_template()))


async def test_a_lease_has_one_holder(stores: Both) -> None:
    leases, _ = stores
    first = await leases.acquire("leader", "a", ttl_s=60)
    assert first is not None
    assert await leases.acquire("leader", "b", ttl_s=60) is None
    again = await leases.acquire("leader", "a", ttl_s=60)
    assert again == first, "its holder makes it last"
    other = await leases.acquire("manager:b", "b", ttl_s=60)
    assert other is not None
    assert await leases.holders("manager:") == {"manager:b": "b"}


async def test_a_lease_that_was_released_or_ran_out_is_another_s_with_a_greater_token(stores: Both) -> None:
    leases, _ = stores
    first = await leases.acquire("leader", "a", ttl_s=60)
    assert first is not None
    await leases.release(first)
    assert await leases.holders("lead") == {}
    second = await leases.acquire("leader", "b", ttl_s=0.0)
    assert second is not None
    assert second.token > first.token
    await leases.release(first)  # harmless: it is not held any more
    third = await leases.acquire("leader", "c", ttl_s=60)
    assert third is not None
    assert third.token > second.token


async def test_whoever_lost_the_lease_writes_nothing(stores: Both) -> None:
    leases, agents = stores
    first = await leases.acquire("leader", "a", ttl_s=0.0)
    assert first is not None
    with leases.fenced(first):
        await agents.put_agent(make_agent("before"))
    assert await leases.acquire("leader", "b", ttl_s=60) is not None
    with leases.fenced(first):
        with pytest.raises(Conflict):
            await agents.put_agent(make_agent("after"))
        with pytest.raises(Conflict):
            await asyncio.create_task(agents.put_agent(make_agent("after")))
        assert await agents.agent(AgentId("before")) is not None, "it may read"
    await agents.put_agent(make_agent("outside"))
    assert [a.id for a in await agents.agents()] == ["before", "outside"]
