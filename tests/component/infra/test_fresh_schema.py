"""An empty SQLite database gets from the generated file the tables that the migrations make."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import Connection, text

from ai.backend.appproxy.coordinator import db as coordinator_db
from ai.backend.common.errors import Conflict
from ai.backend.infra.database import Database, current_revision, upgrade
from ai.backend.infra.database.fresh import FILE_NAME
from ai.backend.manager import db as manager_db

_BOTH = pytest.mark.parametrize("package", [manager_db, coordinator_db], ids=["manager", "coordinator"])


def _definitions(connection: Connection) -> dict[str, list[str]]:
    rows = connection.execute(text("SELECT type || ' ' || name, coalesce(sql, '') FROM sqlite_master")).all()
    return {name: definition.split() for name, definition in rows}


def _rows(connection: Connection) -> dict[str, list[tuple[object, ...]]]:
    """Returns the rows of each table that has any."""
    names = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'")).scalars().all()
    rows = {name: [tuple(row) for row in connection.execute(text(f'SELECT * FROM "{name}"'))] for name in names}
    return {name: rows[name] for name in names if rows[name]}


def _only_the_file(package: ModuleType, folder: Path) -> Path:
    """Returns a folder that has the generated file and no migration."""
    folder.mkdir()
    shutil.copy(package.MIGRATIONS / FILE_NAME, folder)
    return folder


@_BOTH
async def test_a_fresh_database_is_a_migrated_one(package: ModuleType, tmp_path: Path) -> None:
    fresh, migrated = Database(f"sqlite:///{tmp_path}/fresh.db"), Database(f"sqlite:///{tmp_path}/migrated.db")
    try:
        location = _only_the_file(package, tmp_path / "location")
        assert await upgrade(fresh, location, head=package.SCHEMA_HEAD) == package.SCHEMA_HEAD
        assert await upgrade(migrated, package.MIGRATIONS) == package.SCHEMA_HEAD
        assert await current_revision(fresh) == package.SCHEMA_HEAD
        expected = await migrated.run_read(_definitions)
        assert len(expected) > 10
        assert await fresh.run_read(_definitions) == expected
        assert await fresh.run_read(_rows) == await migrated.run_read(_rows)
    finally:
        await fresh.close()
        await migrated.close()


async def test_a_file_of_another_revision_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/fresh.db")
    try:
        with pytest.raises(Conflict, match=r"tools\.docs"):
            await upgrade(database, _only_the_file(manager_db, tmp_path / "location"), head="9999")
        assert await database.run_read(_definitions) == {}
    finally:
        await database.close()


async def test_a_database_with_tables_is_migrated(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/used.db")
    try:
        await database.run_write(lambda connection: connection.execute(text("CREATE TABLE others (id INTEGER)")))
        assert await upgrade(database, manager_db.MIGRATIONS, head=manager_db.SCHEMA_HEAD) == manager_db.SCHEMA_HEAD
        assert "table others" in await database.run_read(_definitions)
        assert "table sessions" in await database.run_read(_definitions)
    finally:
        await database.close()
