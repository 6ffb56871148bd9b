"""Maps dataclasses to rows of tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, Row, Table, insert, select, update
from sqlalchemy.exc import IntegrityError

from ai.backend.common.errors import Conflict


def row_of(value: Any, *, without: Collection[str] = ()) -> dict[str, Any]:
    """Returns the fields of a dataclass by name."""
    return {field.name: getattr(value, field.name) for field in fields(value) if field.name not in without}


def put_row(s: Connection, table: Table, key: str, row: Mapping[str, Any]) -> None:
    """Updates the row with the same key, or inserts it."""
    result = s.execute(update(table).where(table.c[key] == row[key]).values(row))
    if result.rowcount == 0:
        s.execute(insert(table), dict(row))


def add_row(s: Connection, table: Table, row: Mapping[str, Any], noun: str) -> None:
    """Inserts a row. Raises Conflict, with ``noun`` in its text, if its name is taken."""
    try:
        s.execute(insert(table), dict(row))
    except IntegrityError:
        raise Conflict(f"There is a {noun} {row['name']!r} already.", data={"name": "taken"}) from None


def change_row(s: Connection, table: Table, key: str, value: Any, values: Mapping[str, Any]) -> Row[Any] | None:
    """Sets columns of the row whose ``key`` is ``value`` and returns the row. Raises Conflict if the name is taken."""
    same = table.c[key] == value
    if values:
        try:
            s.execute(update(table).where(same).values(values))
        except IntegrityError:
            raise Conflict(f"{values.get('name')!r} is taken already.", data={"name": "taken"}) from None
    return s.execute(select(table).where(same)).one_or_none()
