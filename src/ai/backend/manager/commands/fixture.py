"""`backend.ai mgr fixture populate`: rows from JSON files (spec 03-02, "Populate the database ...")."""

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
from ai.backend.manager.commands.running import on_database, read_json
from ai.backend.manager.composition.backing_services import sealer_of
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.db import metadata as t
from ai.backend.manager.secrets.sealer import sealed

_LINKS = {
    "sgroups_for_domains": ("domain", "domain"),
    "sgroups_for_groups": ("group", "group"),
    "sgroups_for_keypairs": ("keypair", "access_key"),
}
_NAMES = {"association_groups_users": "memberships"}
_ACTIVE = "active"
_TRUE = frozenset({"is_active", "is_public", "schedulable"})
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
    data = read_json(file)
    if not isinstance(data, dict) or not all(isinstance(v, list) for k, v in data.items() if not k.startswith("__")):
        raise click.ClickException(f"{file} is no object of lists of rows")
    sealer = sealer_of(settings)
    only_update = data.get("__mode") == "update"

    def write(s: Connection) -> list[str]:
        lines = []
        for name, rows in data.items():
            if not name.startswith("__"):
                writer = _TableWriter(s, name, lambda key, secret: sealed(sealer, key, secret))
                counts = [writer.put(row, overwrite=overwrite, only_update=only_update) for row in rows]
                lines.append(f"{name}: {counts.count('new')} new, {counts.count('changed')} changed")
        return lines

    for line in on_database(settings, lambda database: database.run_write(write)):
        click.echo(line)


class _TableWriter:
    """Writes rows of one table, whose name and columns may be the published ones."""

    def __init__(self, s: Connection, name: str, seal: Seal) -> None:
        self._s = s
        self._name = name
        self._seal = seal
        own_name = "scaling_group_links" if name in _LINKS else _NAMES.get(name, name)
        if own_name not in t.metadata.tables:
            raise InvalidInput(f"there is no table {name!r}", data={"table": name})
        self._table = t.metadata.tables[own_name]

    def put(self, row: Any, *, overwrite: bool, only_update: bool) -> str:
        """Writes a row and returns ``new``, ``changed`` or ``kept``."""
        if not isinstance(row, dict):
            raise InvalidInput(f"{self._name}: {str(row)[:60]!r} is no row")
        renamed = self._renamed(row)
        values = {c.name: _value(c, renamed[c.name]) for c in self._table.c if c.name in renamed}
        keys = [c for c in self._table.primary_key.columns if c.name in values]
        if len(keys) != len(self._table.primary_key.columns):
            names = ", ".join(c.name for c in self._table.primary_key.columns)
            raise InvalidInput(f"{self._name}: a row lacks its key ({names})")
        where = [c == values[c.name] for c in keys]
        is_there = self._s.execute(select(*self._table.primary_key.columns).where(*where)).first() is not None
        if is_there:
            others = {name: value for name, value in values.items() if name not in {c.name for c in keys}}
            if not (overwrite or only_update) or not others:
                return "kept"
            self._s.execute(update(self._table).where(*where).values(others))
            return "changed"
        if only_update:
            message = f"{self._name}: there is no row {', '.join(str(values[c.name]) for c in keys)} to change"
            raise InvalidInput(message)
        missing = [c for c in self._table.c if c.name not in values and not c.nullable and c.server_default is None]
        self._s.execute(insert(self._table).values({**{c.name: _default(c) for c in missing}, **values}))
        return "new"

    def _renamed(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the row with the names of this schema, its password hashed and its secret key encrypted."""
        values = dict(row)
        if self._name in _LINKS:
            kind, column = _LINKS[self._name]
            return {"scaling_group": row.get("scaling_group"), "kind": kind, "target": str(row.get(column))}
        if self._name == "keypairs":
            if "user" in values:
                values["user_id"] = values.pop("user")
            if "secret_key" in values and "access_key" in values:
                values["secret_key"] = self._seal(str(values["access_key"]), str(values["secret_key"]))
        if self._name == "users" and values.get("password") and not str(values["password"]).startswith("$"):
            values["password"] = PasswordHasher().hash(str(values["password"]))
        return values


def _value(column: Column[Any], value: Any) -> Any:
    kind = column.type
    try:
        if value is None or isinstance(kind, JSONText):
            return value
        if isinstance(kind, GUID):
            return UUID(str(value))
        if isinstance(kind, UTCDateTime):
            at = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
            return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        if isinstance(kind, QuantityMap):
            return ResourceSlot.parse({str(k): str(v) for k, v in dict(value).items()})
        if isinstance(kind, EnumText):
            return kind.kind(str(value).lower() if str(value).lower() in set(kind.kind) else str(value))
        return value
    except (ValueError, TypeError) as e:
        raise InvalidInput(f"{column.table.name}.{column.name}: {e}") from None


_DEFAULTS: dict[type[Any], Callable[[], Any]] = {
    UTCDateTime: lambda: datetime.now(UTC),
    QuantityMap: lambda: ResourceSlot({}),
    JSONTuple: tuple,
    JSONText: dict,
    Integer: int,
    Float: int,
}
_TEXTS = {"resource_policy": "default", "status": _ACTIVE, "driver": "static", "scheduler": "fifo"}


def _default(column: Column[Any]) -> Any:
    kind = column.type
    for column_type, default in _DEFAULTS.items():
        if isinstance(kind, column_type):
            return default()
    if isinstance(kind, Boolean):
        return column.name in _TRUE
    if isinstance(kind, EnumText) and _ACTIVE in set(kind.kind):
        return kind.kind(_ACTIVE)
    if isinstance(kind, EnumText | GUID):
        raise InvalidInput(f"{column.table.name}.{column.name} is missing")
    return _TEXTS.get(column.name, "")
