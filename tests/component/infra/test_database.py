"""The database toolkit on a real SQLite file."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Column, Connection, Engine, Integer, MetaData, Table, delete, event, insert, select, text, update
from sqlalchemy.exc import IntegrityError, StatementError

from ai.backend.common.errors import Conflict, Unavailable
from ai.backend.common.slots import ResourceSlot
from ai.backend.infra.database import GUID, Database, JSONText, QuantityMap, UTCDateTime, current_revision, upgrade
from ai.backend.infra.database.ballast import STEP_INTERVAL_S
from ai.backend.infra.database.prepared import Prepared

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


@contextmanager
def locked(database: Database) -> Iterator[sqlite3.Connection]:
    """Holds the write lock of the database, as another process does."""
    connection = sqlite3.connect(database.location.database or "", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield connection
    connection.execute("COMMIT")
    connection.close()


async def test_a_reader_does_not_wait_for_a_writer(database: Database) -> None:
    with locked(database) as other:
        other.execute("INSERT INTO things (id) VALUES (1)")
        assert await database.run_read(lambda c: c.execute(select(things)).all()) == []


async def test_a_write_waits_for_another_process_while_the_event_loop_turns(database: Database) -> None:
    with locked(database):
        writing = asyncio.create_task(database.run_write(lambda c: c.execute(insert(things), {"id": 1})))
        await asyncio.sleep(0.05)
        assert not writing.done()
    await writing
    assert len(await database.run_read(lambda c: c.execute(select(things)).all())) == 1


_COUNT_TO_A_MILLION = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000) SELECT max(i) FROM n"
)


async def test_a_prepared_statement_of_many_rows_runs_in_a_thread(database: Database) -> None:
    """SQLite ends it between two rows, after the first ones have come."""
    await database.run_write(lambda c: c.execute(insert(things), [{"n": n} for n in range(3000)]))
    rows = await database.fetch(Prepared(select(things.c.id, things.c.n, things.c.doc)), {})
    assert [row.n for row in rows] == list(range(3000))


@pytest.mark.parametrize("is_write", [False, True])
async def test_a_long_transaction_runs_in_a_thread_and_once_only_commits(database: Database, is_write: bool) -> None:
    threads: list[threading.Thread] = []

    def work(connection: Connection) -> int:
        threads.append(threading.current_thread())
        if is_write:
            connection.execute(insert(things), {"n": 1})
        return int(connection.execute(text(_COUNT_TO_A_MILLION)).scalar_one())

    assert await (database.run_write(work) if is_write else database.run_read(work)) == 1_000_000
    assert threads[0] is threading.main_thread()
    assert [thread.name.partition("_")[0] for thread in threads[1:]] == ["db-write" if is_write else "db-read"]
    assert await database.run_read(lambda c: c.execute(select(things.c.n)).scalars().all()) == [1] * is_write


async def test_many_short_transactions_let_other_tasks_run(database: Database) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    for _ in range(100):
        await database.run_read(lambda c: c.execute(select(things.c.id)).all())
    assert turns >= 3
    turning.cancel()


async def test_the_log_of_many_short_writes_is_copied_into_the_file(tmp_path: Path, database: Database) -> None:
    for number in range(400):
        await database.execute(insert(things), {"doc": "x" * 20_000, "n": number})
    sizes = {path.name: path.stat().st_size for path in await asyncio.to_thread(lambda: list(tmp_path.iterdir()))}
    assert sizes["test.db"] > 4_000_000
    assert sizes["test.db-wal"] < 6_000_000, "9 million bytes were written"


async def test_a_log_that_cannot_be_copied_is_reported_and_copied_later(
    tmp_path: Path, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(connection: sqlite3.Connection, _: object) -> None:
        if threading.current_thread().name.startswith("db-write"):
            raise sqlite3.OperationalError("disk I/O error")

    async def write(count: int) -> None:
        for number in range(count):
            await database.execute(insert(things), {"doc": "x" * 20_000, "n": number})

    await database.run_write(lambda c: c.execute(text(_COUNT_TO_A_MILLION)).all())  # opens the connection of the thread
    event.listen(Engine, "connect", refuse)
    try:
        await write(150)
    finally:
        event.remove(Engine, "connect", refuse)
    assert "disk I/O error" in caplog.text
    await write(150)
    sizes = {path.name: path.stat().st_size for path in await asyncio.to_thread(lambda: list(tmp_path.iterdir()))}
    assert sizes["test.db"] > 4_000_000


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
    with pytest.raises(Conflict, match="newer version than this program: it is at revision 9999"):
        await upgrade(database, tmp_path / "old")


async def test_a_database_before_the_baseline_is_told_what_to_pass_through(database: Database, tmp_path: Path) -> None:
    _migration(tmp_path / "old", "0003", None, "one")
    await upgrade(database, tmp_path / "old")
    _migration(tmp_path / "new", "0038", None, "two")
    path = tmp_path / "new/versions/0038.py"
    path.write_text(f"{path.read_text()}previous_program = 'version 26.11.0'\n")
    message = "at revision 0003, and this program upgrades from 0038 on: upgrade it first with version 26.11.0"
    with pytest.raises(Conflict, match=message):
        await upgrade(database, tmp_path / "new", head="0038")
    assert await current_revision(database) == "0003"
    names = await database.run_read(lambda c: c.execute(text("SELECT name FROM sqlite_master")).scalars().all())
    assert "two" not in names


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
    def opened(connection: Connection) -> object:
        return connection.connection.dbapi_connection

    def count(connection: Connection) -> int:
        return len(connection.execute(select(things.c.id)).all())

    assert await database.run_read(count) == 0
    before = await database.run_write(opened)
    assert await database.run_write(opened) is before
    with locked(database):
        writing = asyncio.create_task(
            database.run_write(lambda connection: connection.execute(insert(things).values(id=1, n=1)))
        )
        await asyncio.sleep(0.05)
        await database.close_idle()  # the connection of the thread for writes is in use
    await writing
    assert await database.run_read(count) == 1
    assert await database.run_write(opened) is not before
    await database.run_write(lambda connection: connection.execute(insert(things).values(id=3, n=3)))
    assert await database.run_read(count) == 2


@pytest.mark.needs("root")
async def test_writes_go_on_for_a_while_on_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    await asyncio.to_thread(subprocess.run, ["mount", "-t", "tmpfs", "-o", "size=160m", "t", str(disk)], check=True)
    database = Database(f"sqlite:///{disk}/test.db", ballast_bytes=16 << 20)
    try:
        await database.run_write(metadata.create_all)
        await database.vacuum()  # in the thread in which the ballast was made before
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
