"""Implements `backend.ai mgr fixture populate`, which writes rows from JSON files.

See spec 03-02, "Populate the database ...".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import click
from argon2 import PasswordHasher
from sqlalchemy import Boolean, Column, Connection, Float, Integer, insert, select, update

from ai.backend.common.errors import InvalidInput
from ai.backend.common.slots import ResourceSlot
from ai.backend.infra.database import GUID, JSONText, QuantityMap, UTCDateTime
from ai.backend.infra.database.columns import EnumText, JSONTuple
from ai.backend.manager.commands.running import read_json, run_on_database
from ai.backend.manager.composition.backing_services import sealer_of
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.db import metadata
from ai.backend.manager.secrets.sealer import seal_secret_key

_LINK_COLUMNS = {
    "sgroups_for_domains": ("domain", "domain"),
    "sgroups_for_groups": ("group", "group"),
    "sgroups_for_keypairs": ("keypair", "access_key"),
}
_TABLE_NAMES = {"association_groups_users": "memberships"}
_PLACEHOLDER = "change-me"
"""The beginning of keys and passwords in the examples of `deploy/fixtures`, which everybody knows."""
_ACTIVE_STATUS = "active"
_TRUE_COLUMNS = frozenset({"is_active", "is_public", "schedulable"})
Seal = Callable[[str, str], str]


@click.group("fixture")
def fixture() -> None:
    """Load initial rows."""


@fixture.command("populate")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--overwrite", is_flag=True, help="Rows that are there take what the file says; else they stay.")
@click.pass_obj
def populate(settings: ManagerSettings, file: Path, overwrite: bool) -> None:
    """Write the rows in FILE: an object of tables, each a list of rows; all or none.

    With "__mode": "update" rows are only changed. Plain passwords are hashed, secret keys sealed.
    """
    tables = read_json(file)
    if not isinstance(tables, dict) or not all(
        isinstance(rows, list) for name, rows in tables.items() if not name.startswith("__")
    ):
        raise click.ClickException(f"{file} is no object of lists of rows")
    sealer = sealer_of(settings)
    only_update = tables.get("__mode") == "update"

    def write(conn: Connection) -> list[str]:
        summary_lines = []
        for name, rows in tables.items():
            if not name.startswith("__"):
                writer = _TableWriter(conn, name, lambda key, secret: seal_secret_key(sealer, key, secret))
                counts = [writer.put(row, overwrite=overwrite, only_update=only_update) for row in rows]
                summary_lines.append(f"{name}: {counts.count('new')} new, {counts.count('changed')} changed")
        return summary_lines

    for line in run_on_database(settings, lambda database: database.run_write(write)):
        click.echo(line)


class _TableWriter:
    """Writes rows of a fixture into one table. Published names of tables and columns are accepted."""

    def __init__(self, conn: Connection, name: str, seal: Seal) -> None:
        self._s = conn
        self._name = name
        self._seal = seal
        table_name = "scaling_group_links" if name in _LINK_COLUMNS else _TABLE_NAMES.get(name, name)
        if table_name not in metadata.tables:
            raise InvalidInput(f"there is no table {name!r}", data={"table": name})
        self._table = metadata.tables[table_name]

    def put(self, row: Any, *, overwrite: bool, only_update: bool) -> str:
        """Writes a row and returns ``new``, ``changed`` or ``kept``."""
        if not isinstance(row, dict):
            raise InvalidInput(f"{self._name}: {str(row)[:60]!r} is no row")
        if placeholder_keys := [key for key, value in row.items() if str(value).startswith(_PLACEHOLDER)]:
            raise InvalidInput(
                f"{self._name}: put values of your own in place of {_PLACEHOLDER} in {', '.join(placeholder_keys)}"
            )
        renamed_row = self._renamed_row(row)
        values = {
            column.name: _parsed_value(column, renamed_row[column.name])
            for column in self._table.c
            if column.name in renamed_row
        }
        keys = [column for column in self._table.primary_key.columns if column.name in values]
        if len(keys) != len(self._table.primary_key.columns):
            key_names = ", ".join(column.name for column in self._table.primary_key.columns)
            raise InvalidInput(f"{self._name}: a row lacks its key ({key_names})")
        is_same_row = [column == values[column.name] for column in keys]
        row_exists = self._s.execute(select(*self._table.primary_key.columns).where(*is_same_row)).first() is not None
        if row_exists:
            other_values = {
                name: value for name, value in values.items() if name not in {column.name for column in keys}
            }
            if not (overwrite or only_update) or not other_values:
                return "kept"
            self._s.execute(update(self._table).where(*is_same_row).values(other_values))
            return "changed"
        if only_update:
            message = (
                f"{self._name}: there is no row {', '.join(str(values[column.name]) for column in keys)} to change"
            )
            raise InvalidInput(message)
        missing_columns = [
            column_
            for column_ in self._table.c
            if column_.name not in values and not column_.nullable and column_.server_default is None
        ]
        self._s.execute(
            insert(self._table).values({**{column.name: _type_default(column) for column in missing_columns}, **values})
        )
        return "new"

    def _renamed_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the row with the names of this schema, its password hashed and its secret key encrypted."""
        values = dict(row)
        if self._name in _LINK_COLUMNS:
            foreign_table, column = _LINK_COLUMNS[self._name]
            return {"scaling_group": row.get("scaling_group"), "kind": foreign_table, "target": str(row.get(column))}
        if self._name == "keypairs":
            if "user" in values:
                values["user_id"] = values.pop("user")
            if "secret_key" in values and "access_key" in values:
                values["secret_key"] = self._seal(str(values["access_key"]), str(values["secret_key"]))
        if self._name == "users" and values.get("password") and not str(values["password"]).startswith("$"):
            values["password"] = PasswordHasher().hash(str(values["password"]))
        return values


def _parsed_value(column: Column[Any], value: Any) -> Any:
    column_type = column.type
    try:
        if value is None or isinstance(column_type, JSONText):
            return value
        if isinstance(column_type, GUID):
            return UUID(str(value))
        if isinstance(column_type, UTCDateTime):
            parsed_time = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
            return parsed_time if parsed_time.tzinfo is not None else parsed_time.replace(tzinfo=UTC)
        if isinstance(column_type, QuantityMap):
            return ResourceSlot.parse({str(name): str(value) for name, value in dict(value).items()})
        if isinstance(column_type, EnumText):
            return column_type.kind(str(value).lower() if str(value).lower() in set(column_type.kind) else str(value))
        return value
    except (ValueError, TypeError) as e:
        raise InvalidInput(f"{column.table.name}.{column.name}: {e}") from None


_TYPE_DEFAULTS: dict[type[Any], Callable[[], Any]] = {
    UTCDateTime: lambda: datetime.now(UTC),
    QuantityMap: lambda: ResourceSlot({}),
    JSONTuple: tuple,
    JSONText: dict,
    Integer: int,
    Float: int,
}
_TEXT_DEFAULTS = {"resource_policy": "default", "status": _ACTIVE_STATUS, "driver": "static", "scheduler": "fifo"}


def _type_default(column: Column[Any]) -> Any:
    python_type = column.type
    for column_type, default_value in _TYPE_DEFAULTS.items():
        if isinstance(python_type, column_type):
            return default_value()
    if isinstance(python_type, Boolean):
        return column.name in _TRUE_COLUMNS
    if isinstance(python_type, EnumText) and _ACTIVE_STATUS in set(python_type.kind):
        return python_type.kind(_ACTIVE_STATUS)
    if isinstance(python_type, EnumText | GUID):
        raise InvalidInput(f"{column.table.name}.{column.name} is missing")
    return _TEXT_DEFAULTS.get(column.name, "")
