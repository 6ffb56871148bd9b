"""The database toolkit on a real SQLite file."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, delete, insert, select, text, update
from sqlalchemy.exc import IntegrityError, StatementError

from ai.backend.common.errors import Conflict, Unavailable
from ai.backend.common.slots import ResourceSlot
from ai.backend.infra.database import GUID, Database, JSONText, QuantityMap, UTCDateTime, current_revision, upgrade
from ai.backend.infra.database.ballast import STEP_INTERVAL_S

metadata = MetaData()
things = Table(
    "things",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("n", Integer),
    Column("at", UTCDateTime),
    Column("uid", GUID),
    Column("doc", JSONText),
    Column("slots", QuantityMap),
)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(f"sqlite:///{tmp_path}/test.db")
    await database.run_write(metadata.create_all)
    yield database
    await database.close()


async def test_values_come_back_as_they_went_in(database: Database) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone(timedelta(hours=9)))
    row = {
        "id": 1,
        "at": at,
        "uid": uuid4(),
        "doc": {"a": [1, None, "ü"]},
        "slots": ResourceSlot({"cpu": Decimal("0.1"), "mem": Decimal(10**18 + 1)}),
    }
    await database.run_write(lambda c: c.execute(insert(things).values(**row)))
    found = await database.run_read(lambda c: c.execute(select(things)).mappings().one())
    assert {k: found[k] for k in row} == row
    assert found["at"].tzinfo is UTC


async def test_a_naive_time_is_refused(database: Database) -> None:
    naive = insert(things).values(id=1, at=datetime(2026, 1, 1))  # noqa: DTZ001  # the point
    with pytest.raises(StatementError):
        await database.run_write(lambda c: c.execute(naive))


async def _add(database: Database, times: int) -> None:
    def work(connection: Connection) -> None:
        n = connection.execute(select(things.c.n)).scalar_one()
        connection.execute(update(things).values(n=n + 1))

    for _ in range(times):
        await database.run_write(work)


async def test_no_update_is_lost_between_tasks_and_engines(database: Database) -> None:
    await database.run_write(lambda c: c.execute(insert(things), {"id": 1, "n": 0}))
    other = Database(database.url)
    try:
        await asyncio.gather(*(_add(db, 20) for db in (database, other) for _ in range(4)))
    finally:
        await other.close()
    assert await database.run_read(lambda c: c.execute(select(things.c.n)).scalar_one()) == 160


async def test_a_reader_does_not_wait_for_a_writer(database: Database) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slowly(connection: Connection) -> None:
        connection.execute(insert(things), {"id": 1})
        began.set()
        assert go_on.wait(30)

    writing = asyncio.create_task(database.run_write(slowly))
    try:
        assert await asyncio.to_thread(began.wait, 30)
        async with asyncio.timeout(30):
            assert await database.run_read(lambda c: c.execute(select(things)).all()) == []
    finally:
        go_on.set()
        await writing


def _migration(folder: Path, revision: str, down: str | None, table: str) -> None:
    (folder / "versions").mkdir(parents=True, exist_ok=True)
    (folder / "versions" / f"{revision}.py").write_text(
        f"import sqlalchemy as sa\nfrom alembic import op\nrevision = {revision!r}\ndown_revision = {down!r}\n"
        f"def upgrade():\n    op.create_table({table!r}, sa.Column('id', sa.Integer, primary_key=True))\n"
    )


async def test_migrations_run_forward_and_once(database: Database, tmp_path: Path) -> None:
    _migration(tmp_path / "m", "0001", None, "one")
    assert await current_revision(database) is None
    assert await upgrade(database, tmp_path / "m") == "0001"
    _migration(tmp_path / "m", "0002", "0001", "two")
    assert await upgrade(database, tmp_path / "m") == "0002"
    assert await upgrade(database, tmp_path / "m", head="0002") == "0002"
    names = await database.run_read(lambda c: c.execute(text("SELECT name FROM sqlite_master")).scalars().all())
    assert {"one", "two"} <= {*names}


async def test_a_failing_migration_leaves_the_schema_as_it_was(database: Database, tmp_path: Path) -> None:
    _migration(tmp_path / "m", "0001", None, "one")
    _migration(tmp_path / "m", "0002", "0001", "one")
    with pytest.raises(Exception, match="already exists"):
        await upgrade(database, tmp_path / "m")
    assert await current_revision(database) is None


async def test_a_database_of_a_newer_program_is_refused(database: Database, tmp_path: Path) -> None:
    _migration(tmp_path / "new", "9999", None, "one")
    await upgrade(database, tmp_path / "new")
    _migration(tmp_path / "old", "0001", None, "two")
    with pytest.raises(Conflict, match="newer"):
        await upgrade(database, tmp_path / "old")


async def test_a_transaction_in_a_thread_commits_or_leaves_nothing(database: Database) -> None:
    async def count() -> int:
        return await database.run_read(lambda c: len(c.execute(select(things.c.id)).all()))

    await database.run_write(lambda c: c.execute(insert(things), {"id": 1, "n": 0}))

    def fails(connection: Connection) -> None:
        connection.execute(insert(things), {"id": 2, "n": 0})
        raise ValueError("changed my mind")

    with pytest.raises(ValueError, match="changed"):
        await database.run_write(fails)
    with pytest.raises(IntegrityError):
        await database.run_write(lambda c: [c.execute(insert(things), {"id": i}) for i in (2, 1)])
    assert await count() == 1
    await database.run_read(lambda c: c.execute(insert(things), {"id": 3, "n": 0}))
    assert await count() == 1, "a read transaction changes nothing"


async def test_a_full_disk_is_told_as_such(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'full.db'}")

    def fill(connection: Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE big (data BLOB)")
        connection.exec_driver_sql("PRAGMA max_page_count = 10")
        connection.exec_driver_sql("INSERT INTO big VALUES (zeroblob(1000000))")

    with pytest.raises(Unavailable, match="full"):
        await database.run_write(fill)
    await database.run_write(lambda connection: connection.exec_driver_sql("CREATE TABLE small (data BLOB)").close())
    await database.close()


async def test_after_a_rest_everything_goes_on(database: Database) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slowly(connection: Connection) -> None:
        connection.execute(insert(things).values(id=1, n=1))
        began.set()
        assert go_on.wait(30)
        connection.execute(insert(things).values(id=2, n=2))

    def opened(connection: Connection) -> object:
        return connection.connection.dbapi_connection

    def count(connection: Connection) -> int:
        return len(connection.execute(select(things.c.id)).all())

    assert await database.run_read(count) == 0
    before = await database.run_write(opened)
    writing = asyncio.create_task(database.run_write(slowly))
    await asyncio.to_thread(began.wait, 30)
    await database.rest()  # the writer's connection is in use
    go_on.set()
    await writing
    assert await database.run_read(count) == 2
    assert await database.run_write(opened) is before
    await database.rest()
    assert await database.run_write(opened) is not before
    await database.run_write(lambda connection: connection.execute(insert(things).values(id=3, n=3)))
    assert await database.run_read(count) == 3


@pytest.mark.needs("root")
async def test_writes_go_on_for_a_while_on_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    await asyncio.to_thread(subprocess.run, ["mount", "-t", "tmpfs", "-o", "size=160m", "t", str(disk)], check=True)
    database = Database(f"sqlite:///{disk}/test.db", ballast_bytes=16 << 20)
    try:
        await database.run_write(metadata.create_all)
        assert await asyncio.to_thread(lambda: (disk / "test.db.ballast").stat().st_blocks) == (16 << 20) // 512
        await asyncio.to_thread(_fill, disk / "big")
        for number in range(64):
            await database.execute(insert(things), {"id": number, "doc": ["x" * 4000]})
        await asyncio.to_thread(_fill, disk / "more")
        await asyncio.sleep(STEP_INTERVAL_S)
        assert await database.execute(delete(things)) == 64
        for name in ("big", "more"):
            (disk / name).unlink()
    finally:
        await database.close()
        await asyncio.to_thread(subprocess.run, ["umount", str(disk)], check=True)


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 12)):
            pass
    assert shutil.disk_usage(path.parent).free == 0
