"""Copies the rows of a SQLite database into an empty PostgreSQL database."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, NullPool, Table, create_engine, func, insert, select, text

from ai.backend.common.errors import Conflict, InvalidInput
from ai.backend.infra.database import Database, current_revision
from ai.backend.manager.backup.sql_sqlite import SqliteCopier

_BATCH_ROWS = 1_000
_SET_SEQUENCE = text("SELECT setval(pg_get_serial_sequence(:table, :column), :value)")
_SELECT_SEQUENCES = "SELECT name, seq FROM sqlite_sequence"


class SqliteImport:
    """Copies all rows of a SQLite database into the tables of a PostgreSQL database, all or none.

    Both databases are of the same revision, and ``metadata`` has all of their tables.
    """

    def __init__(self, source: Database, target: Database, metadata: MetaData) -> None:
        self._source = source
        self._target = target
        self._tables = metadata.sorted_tables

    async def check(self, revision: str) -> None:
        """Raises Conflict if the source is not of the revision, and InvalidInput if the target is no PostgreSQL
        database.
        """
        if not self._target.is_shared:
            raise InvalidInput("the settings name no PostgreSQL database: set `database.url`")
        source_revision = await current_revision(self._source)
        if source_revision != revision:
            raise Conflict(
                f"{self._source.location.database} is at revision {source_revision}, this program at {revision}: start"
                " its manager once with this version"
            )

    async def check_target_is_empty(self) -> None:
        """Raises Conflict if a table of the target has rows."""
        await self._target.run_read(self._check_is_empty)

    def _check_is_empty(self, connection: Connection) -> None:
        if filled_table := self._find_filled_table(connection):
            raise Conflict(
                f"the database {self._target.location.database} has rows in {filled_table}: rows are copied into an"
                " empty one. Create another, and name it in the settings"
            )

    def _find_filled_table(self, connection: Connection) -> str | None:
        return next((table.name for table in self._tables if connection.execute(select(table).limit(1)).first()), None)

    async def run(self, workspace: Path) -> int:
        """Copies the rows as they are at one moment, and returns their number. Raises Conflict if the target has rows.

        ``workspace`` takes a temporary copy of the source.
        """
        with tempfile.NamedTemporaryFile(dir=workspace, prefix=".import-") as copy:
            await SqliteCopier(self._source, workspace).write_to(copy.file)
            copy.flush()
            return await self._target.run_write(lambda connection: self._copy_rows(Path(copy.name), connection))

    def _copy_rows(self, path: Path, target: Connection) -> int:
        self._check_is_empty(target)
        engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
        row_count = 0
        with engine.connect() as source:
            for table in self._tables:
                for rows in source.execute(select(table)).mappings().partitions(_BATCH_ROWS):
                    target.execute(insert(table), [dict(row) for row in rows])
                    row_count += len(rows)
        self._continue_numbers(target, _last_numbers(path))
        return row_count

    def _continue_numbers(self, target: Connection, last_numbers: dict[str, int]) -> None:
        """Lets the numbers of new rows begin after those of the copied rows, and of rows that were deleted."""
        for table, column in _numbered_columns(self._tables):
            largest = target.execute(select(func.max(column))).scalar_one() or 0
            last_number = max(largest, last_numbers.get(table.name, 0))
            if last_number:
                target.execute(_SET_SEQUENCE, {"table": table.name, "column": column.name, "value": last_number})


def _numbered_columns(tables: Iterable[Table]) -> Iterable[tuple[Table, Column[int]]]:
    for table in tables:
        if table.autoincrement_column is not None:
            yield table, table.autoincrement_column


def _last_numbers(path: Path) -> dict[str, int]:
    """Returns table -> the largest number that a row ever had, of the tables whose numbers are never used again."""
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute(_SELECT_SEQUENCES).fetchall())
