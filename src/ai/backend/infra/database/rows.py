"""Maps structs to rows of tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import Connection, Row, Table, insert, select, update
from sqlalchemy.exc import IntegrityError

from ai.backend.common.errors import Conflict


def row_of(instance: Struct, *, without: Collection[str] = ()) -> dict[str, Any]:
    """Returns the fields of a struct as a mapping by name."""
    return {name: value for name, value in asdict(instance).items() if name not in without}


def put_row(connection: Connection, table: Table, key_column: str, row: Mapping[str, Any]) -> None:
    """Updates the row with the same key, or inserts it."""
    result = connection.execute(update(table).where(table.c[key_column] == row[key_column]).values(row))
    if result.rowcount == 0:
        connection.execute(insert(table), dict(row))


def add_row(connection: Connection, table: Table, row: Mapping[str, Any], noun: str) -> None:
    """Inserts a row. Raises Conflict, with ``noun`` in its text, if its name is taken."""
    try:
        connection.execute(insert(table), dict(row))
    except IntegrityError:
        raise Conflict(f"There is a {noun} {row['name']!r} already.", data={"name": "taken"}) from None


def change_row(
    connection: Connection, table: Table, key_column: str, key_value: Any, values: Mapping[str, Any]
) -> Row[Any] | None:
    """Sets columns of the row with this key and returns the row. Raises Conflict if the name is taken."""
    key_condition = table.c[key_column] == key_value
    if values:
        try:
            connection.execute(update(table).where(key_condition).values(values))
        except IntegrityError:
            raise Conflict(f"{values.get('name')!r} is taken already.", data={"name": "taken"}) from None
    return connection.execute(select(table).where(key_condition)).one_or_none()
