"""Indexes of large tables that migrations create on PostgreSQL beside writers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from ai.backend.common.errors import Unavailable
from ai.backend.infra.database import Database, current_revision, migrate, online_indexes, upgrade
from tests.support.postgres import shared_server

pytestmark = pytest.mark.needs("postgres")
_IN_PROGRESS = "SELECT 1 FROM pg_stat_progress_create_index"
_FIRST = """
import sqlalchemy as sa
from alembic import op
revision, down_revision = "0001", None
def upgrade():
    op.create_table("things", sa.Column("id", sa.Integer, primary_key=True), sa.Column("n", sa.Integer))
"""
_SECOND = """
import sqlalchemy as sa
from alembic import op
from ai.backend.infra.database.online_indexes import create_index
revision, down_revision = "0002", "0001"
def upgrade():
    op.add_column("things", sa.Column("m", sa.Integer))
    create_index("ix_things_n_m", "things", ["n", "m"])
"""


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """A database before the second of two migrations, which are in ``tmp_path``."""
    server = shared_server()
    database = Database(server.url(server.create()))
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions/0001.py").write_text(_FIRST)
    await upgrade(database, tmp_path)
    (tmp_path / "versions/0002.py").write_text(_SECOND)
    yield database
    await database.close()


async def _scalars(database: Database, query: str) -> list[Any]:
    return list(await database.run_read(lambda connection: connection.execute(text(query)).scalars().all()))


async def _indexes(database: Database) -> list[Any]:
    query = "SELECT indexrelid::regclass::text FROM pg_index WHERE indisvalid AND indrelid = 'things'::regclass"
    return sorted(await _scalars(database, query))


@asynccontextmanager
async def _locked(database: Database, mode: str) -> AsyncIterator[None]:
    """Holds a lock of the table until the end of the block."""
    import asyncpg

    connection = await asyncpg.connect(database.url)
    try:
        async with connection.transaction():
            await connection.execute(f"LOCK TABLE things IN {mode} MODE")
            yield
    finally:
        await connection.close()


async def test_an_index_follows_its_migration(database: Database, tmp_path: Path) -> None:
    assert await upgrade(database, tmp_path) == "0002"
    assert await _indexes(database) == ["ix_things_n_m", "things_pkey"]
    assert await _scalars(database, "SELECT count(*) FROM pending_indexes") == [0]


async def test_a_writer_goes_on_while_the_index_waits_for_it(database: Database, tmp_path: Path) -> None:
    await upgrade(database, tmp_path)
    note = "INSERT INTO pending_indexes VALUES ('ix_later', '\"things\" (\"m\")')"
    await database.run_write(lambda connection: connection.execute(text(note)))
    async with _locked(database, "ROW EXCLUSIVE"):
        task = asyncio.create_task(upgrade(database, tmp_path, head="0002"))
        async with asyncio.timeout(30):
            while not await _scalars(database, _IN_PROGRESS):  # noqa: ASYNC110  # the server tells no event
                await asyncio.sleep(0.01)
        await database.run_write(lambda c: c.execute(text("INSERT INTO things VALUES (1, 2, 3)")))
        assert not task.done()
        # Another manager starts meanwhile, and leaves the work to the first.
        assert await upgrade(database, tmp_path, head="0002") == "0002"
    assert await task == "0002"
    assert "ix_later" in await _indexes(database)


async def test_the_next_start_finishes_what_a_killed_one_left(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(_: Database) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(online_indexes, "create_noted_indexes", die)
        with pytest.raises(KeyboardInterrupt):
            await upgrade(database, tmp_path)
    assert await current_revision(database) == "0002"
    assert await _indexes(database) == ["things_pkey"]
    await upgrade(database, tmp_path, head="0002")
    assert await _indexes(database) == ["ix_things_n_m", "things_pkey"]


async def test_a_migration_waits_for_readers_without_holding_up_others(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "_PAUSE_S", 0.1)
    async with _locked(database, "ACCESS SHARE"):
        with monkeypatch.context() as patch:
            patch.setattr(migrate, "_TRIES", 1)
            with pytest.raises(Unavailable, match="in use"):
                await upgrade(database, tmp_path)
        task = asyncio.create_task(upgrade(database, tmp_path))
        for number in range(5):
            async with asyncio.timeout(10):
                await _scalars(database, "SELECT n FROM things")
            await asyncio.sleep(0.05 * number)
        assert await current_revision(database) == "0001"
    assert await task == "0002"
