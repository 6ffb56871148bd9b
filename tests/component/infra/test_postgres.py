"""The database toolkit on a real PostgreSQL, which is killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, func, insert, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import await_only

from ai.backend.common.errors import InvalidInput, Unavailable
from ai.backend.infra.config_store import SQLiteConfigStore
from ai.backend.infra.database import Database
from ai.backend.infra.database.postgres import PostgresTransactions
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.needs("postgres")
metadata = MetaData()
things = Table(
    "things",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("n", Integer),
    Column("name", String(8)),
)
order = Table("things_order", metadata, Column("id", Integer, primary_key=True), Column("thing", Integer))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as folder:
        made = PostgresServer(Path(folder), durable=True)
        made.make()
        made.start()
        yield made
        made.stop()


@pytest.fixture
async def database(server: PostgresServer) -> AsyncIterator[Database]:
    name = server.create()
    database = Database(server.url(name), busy_timeout_s=60)
    await database.run_write(metadata.create_all)
    yield database
    await database.close()


async def test_two_managers_lose_no_update_and_events_become_visible_in_order(database: Database) -> None:
    await database.run_write(lambda c: c.execute(insert(things), {"id": 1, "n": 0}))
    other = Database(database.url)

    def add(connection: Connection) -> None:
        n = connection.execute(select(things.c.n).where(things.c.id == 1)).scalar_one()
        connection.execute(update(things).where(things.c.id == 1).values(n=n + 1))
        connection.execute(insert(order), {"thing": n})

    seen: list[int] = []

    async def follow() -> None:
        while len(seen) < 90:
            last = seen[-1] if seen else -1
            newer = select(order.c.thing).where(order.c.thing > last).order_by(order.c.id)
            seen.extend(await database.run_read(lambda c, query=newer: list(c.execute(query).scalars())))  # type: ignore[misc]  # bound at once

    try:
        writers = [db.run_write(add) for db in (database, other) for _ in range(45)]
        async with asyncio.timeout(60):
            await asyncio.gather(follow(), *writers)
    finally:
        await other.close()
    assert seen == list(range(90)), "a reader that goes on behind the last id misses none"


async def test_transactions_that_share_a_commit_fail_alone(database: Database) -> None:
    def put(number: int, name: str) -> Callable[[Connection], int]:
        def work(connection: Connection) -> int:
            connection.execute(insert(things), {"id": number, "name": name})
            if name == "own":
                raise KeyError("its own reasons")
            return number

        return work

    wanted = [(1, "a"), (2, "b"), (1, "again"), (3, "far too long a name"), (4, "own"), (5, "nul\0"), (6, "c")]
    outcomes: list[object] = await asyncio.gather(
        *(database.run_write(put(*one)) for one in wanted), return_exceptions=True
    )
    assert [outcomes[i] for i in (0, 1, 6)] == [1, 2, 6]
    assert [type(outcomes[i]) for i in (2, 3, 4, 5)] == [IntegrityError, InvalidInput, KeyError, InvalidInput]
    assert await database.run_read(lambda c: list(c.execute(select(things.c.id).order_by("id")).scalars())) == [1, 2, 6]
    await database.run_read(lambda c: c.execute(text("SELECT 1")).scalar())


async def test_a_read_sees_one_moment_and_writes_nothing(database: Database) -> None:
    await database.run_write(lambda c: c.execute(insert(things), {"id": 1, "n": 0}))

    def look_twice(connection: Connection) -> list[int]:
        first = connection.execute(select(things.c.n)).scalar_one()
        await_only(database.run_write(lambda c: c.execute(update(things).values(n=1))))
        return [first, connection.execute(select(things.c.n)).scalar_one()]

    assert await database.run_read(look_twice) == [0, 0]
    assert await database.run_read(lambda c: c.execute(select(things.c.n)).scalar_one()) == 1
    with pytest.raises(Exception, match="read-only"):
        await database.run_read(lambda c: c.execute(insert(things), {"id": 2}))


@pytest.mark.timeout(180)
async def test_kills_of_the_server_lose_nothing_and_repeat_nothing(server: PostgresServer, database: Database) -> None:
    """Each write counts up by one and says so; in the end the count is the number of those that said so."""
    await database.run_write(lambda c: c.execute(insert(things), {"id": 1, "n": 0}))
    done, goes_on = 0, True

    def add(connection: Connection) -> None:
        connection.execute(update(things).where(things.c.id == 1).values(n=things.c.n + 1))

    async def write() -> None:
        nonlocal done
        while goes_on:
            await database.run_write(add)
            done += 1

    config = SQLiteConfigStore(database)
    await config.setup()

    async def configure() -> None:
        told = 0
        while goes_on:
            told += 1
            await config.put_many({"told": str(told)})
            assert await config.get("told") == str(told)

    writers = [asyncio.create_task(write()) for _ in range(4)]
    writers.append(asyncio.create_task(configure()))
    for _ in range(2):
        before = done
        async with asyncio.timeout(60):
            while done < before + 20:  # noqa: ASYNC110  # the writers only count
                await asyncio.sleep(0.01)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    goes_on = False
    await asyncio.gather(*writers)
    assert await database.run_read(lambda c: c.execute(select(func.max(things.c.n))).scalar_one()) == done


async def test_a_batch_is_found_committed_by_the_row_of_its_writer(server: PostgresServer) -> None:
    """A server that is killed may give the id of a forgotten transaction to another one, so the id proves nothing."""
    engine = create_async_engine(server.url(server.create()).replace("postgresql:", "postgresql+asyncpg:"))
    first, second = (PostgresTransactions(engine, patience_s=60) for _ in range(2))
    assert not await first.has_committed(1)
    await first.write(metadata.create_all)
    with pytest.raises(IntegrityError):
        await first.write(lambda c: c.execute(insert(things), [{"id": 1}, {"id": 1}]))
    assert await first.has_committed(1), "the second batch was rolled back"
    await second.write(lambda c: c.execute(insert(things), {"id": 1}))
    await second.write(lambda c: c.execute(insert(things), {"id": 2}))
    assert (await first.has_committed(1), await second.has_committed(2)) == (True, True)
    assert not await second.has_committed(3)
    await first.close()


async def test_a_server_that_stays_away_is_told(tmp_path: Path) -> None:
    database = Database(f"postgresql://postgres@/nothing?host={tmp_path}", busy_timeout_s=0.2)
    try:
        with pytest.raises(Unavailable):
            await database.run_write(lambda c: c.execute(select(1)))
        with pytest.raises(Unavailable):
            await database.run_read(lambda c: c.execute(select(1)))
        with pytest.raises(Unavailable):
            await database.run_write(metadata.create_all)
    finally:
        await database.close()


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)


@pytest.mark.needs("root")
async def test_a_disk_that_fills_while_groups_are_committed_loses_nothing_acknowledged(server: PostgresServer) -> None:
    """Simultaneous writes share a commit: who is told "done" is there, who is not has one line that says why, and
    writes go on when there is room again."""
    folder = server.folder / "small"
    folder.mkdir(exist_ok=True)
    await asyncio.to_thread(_run, ["mount", "-t", "tmpfs", "-o", "size=2m,uid=65534", "tmpfs", str(folder)])
    name = server.create()
    database = Database(server.url(name))
    acknowledged: set[int] = set()
    refusals: list[str] = []
    wide = Table("wide", MetaData(), Column("id", Integer, primary_key=True), Column("content", String))
    try:
        server.sql("postgres", f"CREATE TABLESPACE small LOCATION '{folder}'")
        server.sql("postgres", f'ALTER DATABASE "{name}" SET default_tablespace = small')
        await database.close()
        database = Database(server.url(name))
        await database.run_write(wide.create)

        async def write(number: int) -> None:
            content = os.urandom(8_000).hex()
            try:
                await database.run_write(lambda c: c.execute(insert(wide), {"id": number, "content": content}))
            except Unavailable as e:
                refusals.append(str(e))
            else:
                acknowledged.add(number)

        for group in range(20):
            await asyncio.gather(*(write(20 * group + number) for number in range(20)))
        assert acknowledged
        assert refusals
        assert all("\n" not in refusal for refusal in refusals)
        assert all("disk" in refusal for refusal in refusals), refusals[:3]
        assert set(await database.run_read(lambda c: c.execute(select(wide.c.id)).scalars().all())) == acknowledged
        await asyncio.to_thread(_run, ["mount", "-o", "remount,size=32m", str(folder)])
        await write(1_000)
        assert 1_000 in acknowledged
    finally:
        await database.close()
        server.drop(name)
        server.sql("postgres", "DROP TABLESPACE IF EXISTS small")
        await asyncio.to_thread(_run, ["umount", "-l", str(folder)])
