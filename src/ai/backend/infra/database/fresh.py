"""Creates the tables of an empty SQLite database from a generated file, instead of running every migration.

``fresh.sqlite.sql`` beside the migrations is generated from them (``python -m tools.docs``): alembic and its templates
take 17 MiB and most of the processor time of a first start, and a later start needs them only to upgrade.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from ai.backend.common.errors import Conflict

FILE_NAME = "fresh.sqlite.sql"
_HEADER = "-- Written by `python -m tools.docs` from the migrations: an empty database of their newest revision.\n"
_DEFINITIONS = """
SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite!_%' ESCAPE '!'
ORDER BY type != 'table', rowid
"""


def create_tables(connection: Connection, location: Path, version_table: str, head: str) -> bool:
    """Creates the tables of an empty database from the generated file of these migrations.

    Returns False if there is no file, or the database is not empty.

    Raises Conflict if the file is of another revision than ``head``.
    """
    path = location / FILE_NAME
    if not path.exists() or inspect(connection).get_table_names():
        return False
    for statement in _split_statements(path.read_text(encoding="utf-8")):
        connection.exec_driver_sql(statement)
    revision = connection.execute(text(f"SELECT version_num FROM {version_table}")).scalar_one()
    if revision != head:
        raise Conflict(f"{FILE_NAME} makes revision {revision}, not {head}: run `python -m tools.docs`")
    return True


def script_of(connection: Connection, version_table: str) -> str:
    """Returns the contents of the generated file, read from a database that migrations have just created."""
    definitions = [f"{definition};\n" for definition in connection.execute(text(_DEFINITIONS)).scalars()]
    revision = connection.execute(text(f"SELECT version_num FROM {version_table}")).scalar_one()
    lines = "".join(definitions).replace("\t", "    ").splitlines()
    script = "\n".join(line.rstrip() for line in lines if line.strip())
    return f"{_HEADER}{script}\nINSERT INTO {version_table} VALUES ('{revision}');\n"


def _split_statements(script: str) -> Iterator[str]:
    statement = ""
    for script_line in script.splitlines(keepends=True):
        statement += script_line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
