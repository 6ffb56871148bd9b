"""The schema that the migrations make is the one that the tables declare, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from ai.backend.infra.database import Database, current_revision, upgrade
from ai.backend.manager.composition import stores  # noqa: F401  # declares all tables
from ai.backend.manager.db import MIGRATIONS, SCHEMA_HEAD, metadata
from tests.support.postgres import shared_server

_SQLITE = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
_POSTGRES = """
SELECT table_name || '.' || column_name, concat_ws(' ', data_type, character_maximum_length,
    numeric_precision, is_nullable, column_default) FROM information_schema.columns WHERE table_schema = 'public'
UNION ALL SELECT conrelid::regclass || ' ' || conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace
UNION ALL SELECT tablename || ' ' || indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
"""

_TABLES_OF_MIGRATIONS = ("alembic_version", "pending_indexes")
"""The tables that only migrations use."""


def _describe(connection: Connection) -> Mapping[str, list[str]]:
    """Map each table, column, constraint and index to its definition as the database states it.

    The parts of a definition are sorted: a column that a migration adds is the last one of its table.
    """
    query = _SQLITE if connection.dialect.name == "sqlite" else _POSTGRES
    rows = connection.execute(text(query)).all()
    parts = {name: sorted(part.strip(" )\n\t") for part in definition.split(",")) for name, definition in rows}
    return {name: part for name, part in parts.items() if not any(table in name for table in _TABLES_OF_MIGRATIONS)}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
async def databases(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Database, Database]]:
    """Two empty databases."""
    names = ("migrated", "declared")
    if request.param == "sqlite":
        urls = [f"sqlite:///{tmp_path}/{name}.db" for name in names]
    else:
        server = shared_server()
        urls = [server.url(server.create()) for _ in names]
    first, second = Database(urls[0]), Database(urls[1])
    yield first, second
    await first.close()
    await second.close()


async def test_the_migrations_make_the_declared_tables(databases: tuple[Database, Database]) -> None:
    migrated, declared = databases
    assert await upgrade(migrated, MIGRATIONS) == SCHEMA_HEAD
    assert await current_revision(migrated) == SCHEMA_HEAD
    await declared.run_write(metadata.create_all)
    expected = await declared.run_read(_describe)
    assert len(expected) > len(metadata.tables)
    assert await migrated.run_read(_describe) == expected


@pytest.mark.parametrize(
    "change",
    [
        "DROP INDEX ix_sessions_status",
        "ALTER TABLE sessions ADD COLUMN extra TEXT DEFAULT 'x'",
        "ALTER TABLE sessions RENAME COLUMN tag TO label",
    ],
)
async def test_a_difference_of_the_schema_is_seen(databases: tuple[Database, Database], change: str) -> None:
    changed, declared = databases
    for database in databases:
        await database.run_write(metadata.create_all)
    await changed.run_write(lambda connection: connection.execute(text(change)))
    assert await changed.run_read(_describe) != await declared.run_read(_describe)
