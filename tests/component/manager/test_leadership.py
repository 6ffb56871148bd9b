"""Two managers on one PostgreSQL: one leads, the fence holds, and another takes over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import Connection, insert, select

from ai.backend.common.errors import Conflict
from ai.backend.infra.clock import SystemClock
from ai.backend.infra.database import Database
from ai.backend.manager.agents import tables as agents_tables
from ai.backend.manager.leadership.service import Leadership
from ai.backend.manager.leadership.sql import SqlLeaseStore
from tests.support.postgres import emptied, migrated_template, shared_server

pytestmark = pytest.mark.needs("postgres")


@pytest.fixture
async def databases() -> AsyncIterator[tuple[Database, Database]]:
    server = shared_server()
    url = server.url(emptied(server, migrated_template()))
    pair = Database(url), Database(url)
    yield pair
    for database in pair:
        await database.close()


def _note(s: Connection) -> None:
    s.execute(insert(agents_tables.slot_types), {"slot_name": "written", "slot_type": "count", "display": {}})


async def test_a_lease_has_one_holder_and_a_fence(databases: tuple[Database, Database]) -> None:
    one, two = (SqlLeaseStore(database) for database in databases)
    assert await one.acquire("leader", "a", ttl_s=60) is not None
    assert await two.acquire("leader", "b", ttl_s=60) is None
    first = await one.acquire("leader", "a", ttl_s=1.0)
    assert first is not None, "the holder renews it, for as long as it now says"
    with one.fenced(first):
        await databases[0].run_write(lambda s: s.execute(select(1)))
        async with asyncio.timeout(30):
            while (second := await two.acquire("leader", "b", ttl_s=60)) is None:  # noqa: ASYNC110  # by its own clock
                await asyncio.sleep(0.05)
        assert second.token > first.token
        with pytest.raises(Conflict):
            await databases[0].run_write(_note)
        with pytest.raises(Conflict):
            await asyncio.create_task(databases[0].run_write(_note))
    assert await one.acquire("leader", "a", ttl_s=60) is None
    assert await databases[1].run_read(lambda s: s.execute(select(agents_tables.slot_types)).all()) == []
    await two.release(second)
    third = await one.acquire("leader", "a", ttl_s=60)
    assert third is not None
    assert third.token > second.token


async def test_a_leader_that_stops_hands_over(databases: tuple[Database, Database]) -> None:
    leading: list[str] = []
    changed = asyncio.Event()

    def manager(name: str, database: Database) -> Leadership:
        async def begin() -> None:
            leading.append(name)
            changed.set()

        async def end() -> None:
            leading.remove(name)

        store = SqlLeaseStore(database)
        return Leadership(store, SystemClock(), holder=name, ttl_s=10.0, begin=begin, end=end)

    managers = {name: manager(name, database) for name, database in zip("ab", databases, strict=True)}
    tasks = {name: asyncio.create_task(one.run()) for name, one in managers.items()}
    async with asyncio.timeout(30):
        await changed.wait()
        leader = leading[0]
        other = "b" if leader == "a" else "a"
        assert leading == [leader]
        assert await managers[other].living_managers() >= {leader}
        changed.clear()
        tasks[leader].cancel()
        await managers[leader].stop()
        await changed.wait()
    assert leading == [other]
    tasks[other].cancel()
    await managers[other].stop()
