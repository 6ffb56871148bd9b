"""The migrations of the coordinator make the tables that it declares, on SQLite and on PostgreSQL."""

from __future__ import annotations

from sqlalchemy import inspect

from ai.backend.appproxy.coordinator.circuits import tables  # noqa: F401  # declares the tables
from ai.backend.appproxy.coordinator.db import MIGRATIONS, SCHEMA_HEAD, metadata
from ai.backend.infra.database import Database, upgrade


async def test_the_migrations_make_the_declared_tables(database_url: str) -> None:
    database = Database(database_url)
    assert await upgrade(database, MIGRATIONS, head=SCHEMA_HEAD) == SCHEMA_HEAD

    def columns(connection):  # type: ignore[no-untyped-def]  # an inspector's rows have no types
        inspector = inspect(connection)
        return {
            table: {
                (column["name"], column["nullable"], str(column["type"].compile(connection.dialect)))
                for column in inspector.get_columns(table)
            }
            for table in inspector.get_table_names()
            if table != "alembic_version"
        }, {
            table: {(key["name"], *key["column_names"]) for key in inspector.get_unique_constraints(table)}
            for table in metadata.tables
        }

    migrated = await database.run_read(columns)
    await database.run_write(metadata.drop_all)
    await database.run_write(metadata.create_all)
    assert await database.run_read(columns) == migrated
    await database.close()
