"""Migrations on PostgreSQL: forward on a filled database, and to the same tables as the models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Integer, text

from ai.backend.infra.database import Database, upgrade
from ai.backend.manager.adapters.db import MIGRATIONS, SCHEMA_HEAD
from ai.backend.manager.adapters.db.tables import metadata
from tests.support.postgres import migrated_template, shared_server

pytestmark = pytest.mark.needs("postgres")
FIRST = "0001"


def _only_first(folder: Path) -> Path:
    """The migrations of the first release."""
    (folder / "versions").mkdir(parents=True)
    found = next(MIGRATIONS.glob(f"versions/{FIRST}_*.py"))
    (folder / "versions" / found.name).write_bytes(found.read_bytes())
    return folder


def _fill(connection: Connection) -> None:
    """A row in each table, whatever its columns are; those of the outbox count up."""
    tables = connection.execute(
        text("SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version'")
    )
    connection.execute(text("SET session_replication_role = replica"))  # foreign keys are not what is tested
    for (table,) in tables.all():
        columns = connection.execute(
            text(
                "SELECT column_name, data_type, column_default FROM information_schema.columns"
                " WHERE table_name = :table AND is_nullable = 'NO'"
            ),
            {"table": table},
        ).all()
        given = {name: _VALUES[kind] for name, kind, default in columns if default is None}
        values = ", ".join(given.values())
        connection.execute(text(f"INSERT INTO {table} ({', '.join(given)}) VALUES ({values})"))
    connection.execute(text("SET session_replication_role = DEFAULT"))


_VALUES = {
    "character varying": "'x'",
    "text": "'{}'",
    "integer": "7",
    "bigint": "7",
    "boolean": "true",
    "double precision": "0.5",
    "timestamp with time zone": "now()",
    "bytea": "'\\x00'::bytea",
}


def _rows(connection: Connection) -> dict[str, int]:
    names = connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).scalars().all()
    return {name: connection.execute(text(f"SELECT count(*) FROM {name}")).scalar_one() for name in names}


async def test_a_filled_database_of_the_first_release_comes_up_to_date(tmp_path: Path) -> None:
    server = shared_server()
    name = server.create()
    database = Database(server.url(name))
    try:
        await upgrade(database, _only_first(tmp_path / "first"))
        await database.run_sync(_fill)
        before = await database.run_read(_rows)
        assert await upgrade(database, MIGRATIONS) == SCHEMA_HEAD
        after = await database.run_read(_rows)
        assert {table: after[table] for table in before} == before
    finally:
        await database.close()
        server.drop(name)


def _is_width(difference: Any) -> bool:
    """An integer may be wider than its model asks for."""
    is_change = isinstance(difference, list) and all(one[0] == "modify_type" for one in difference)
    return is_change and all(isinstance(kind, Integer) for one in difference for kind in one[-2:])


async def test_the_migrations_make_the_tables_of_the_models() -> None:
    database = Database(shared_server().url(migrated_template()))

    def difference(connection: Connection) -> list[Any]:
        found = list(compare_metadata(MigrationContext.configure(connection), metadata))
        return [one for one in found if not _is_width(one)]

    try:
        assert await database.run_read(difference) == []
    finally:
        await database.close()
