"""Creates the indexes of large tables for migrations, while other connections read and write the tables.

``CREATE INDEX`` holds up every writer of a table while it reads the table. On PostgreSQL a migration therefore notes
the index in the table ``pending_indexes``, in its own transaction, and ``CREATE INDEX CONCURRENTLY`` follows after the
commit. A program that dies in between leaves the note, and the next start finishes the work.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sqlalchemy import Connection, text

if TYPE_CHECKING:
    from ai.backend.infra.database.engine import Database

log = logging.getLogger(__name__)
_CREATE_NOTES = "CREATE TABLE IF NOT EXISTS pending_indexes (name text PRIMARY KEY, columns text NOT NULL)"
_HAS_NOTES = text("SELECT to_regclass('pending_indexes') IS NOT NULL")
_LOCK = f"({0x6261_636B_696E_6478})"
"""The advisory lock of the manager that creates the indexes; the others start meanwhile."""


def create_index(name: str, table: str, columns: list[str]) -> None:
    """Creates an index in a migration. On PostgreSQL, the index is created after the migration is committed."""
    from alembic import op

    if op.get_context().dialect.name != "postgresql":
        op.create_index(name, table, columns)
        return
    quoted_columns = ", ".join(f'"{column}"' for column in columns)
    op.execute(_CREATE_NOTES)
    op.execute(
        text("INSERT INTO pending_indexes VALUES (:name, :columns)").bindparams(
            name=name, columns=f'"{table}" ({quoted_columns})'
        )
    )


async def create_noted_indexes(database: Database) -> None:
    """Creates the indexes that migrations have noted for later (PostgreSQL only).

    Does nothing while another process creates the indexes.
    """
    if database.is_shared and await database.run_read(lambda connection: bool(connection.execute(_HAS_NOTES).scalar())):
        await database.run_online(_create_noted_indexes)


def _create_noted_indexes(connection: Connection) -> None:
    if not connection.execute(text(f"SELECT pg_try_advisory_lock{_LOCK}")).scalar():
        return
    try:
        if not connection.execute(_HAS_NOTES).scalar():
            return  # another process has finished meanwhile
        for name, columns in connection.execute(text("SELECT name, columns FROM pending_indexes")).all():
            log.info("the index %s is created beside what runs", name)
            # One that was interrupted is there, but is not valid.
            connection.execute(text(f'DROP INDEX CONCURRENTLY IF EXISTS "{name}"'))
            connection.execute(text(f'CREATE INDEX CONCURRENTLY "{name}" ON {columns}'))
            connection.execute(text("DELETE FROM pending_indexes WHERE name = :name"), {"name": name})
    finally:
        connection.execute(text(f"SELECT pg_advisory_unlock{_LOCK}"))
