"""Stores dotfiles and bootstrap scripts in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, String, Table, Text, and_, delete, insert, select

from ai.backend.common.ids import AccessKey
from ai.backend.infra.database import Database
from ai.backend.infra.database.columns import EnumText, required
from ai.backend.infra.database.prepared import IsOneOf, Prepared, parameter
from ai.backend.infra.database.rows import row_of
from ai.backend.manager.db import metadata
from ai.backend.manager.dotfiles.model import Dotfile, DotfileOwner, DotfileScope, add_or_replace_dotfile
from ai.backend.manager.identity.tables import domains, groups, keypairs

_DOTFILE_TABLE = Table(
    "dotfiles",
    metadata,
    Column("scope", EnumText(DotfileScope), primary_key=True),
    Column("owner", String(64), primary_key=True),
    Column("path", String(1024), primary_key=True),
    required("permission", String(4)),
    required("data", Text),
)

_SCRIPT_TABLE = Table(
    "bootstrap_scripts",
    metadata,
    Column("access_key", String(20), primary_key=True),
    required("script", Text),
)

_DOTFILE_COLUMNS = _DOTFILE_TABLE.c
_IS_OF_OWNERS = IsOneOf(_DOTFILE_COLUMNS.scope.concat(" ").concat(_DOTFILE_COLUMNS.owner), "owners")
_DOTFILES_OF_OWNERS_QUERY = Prepared(
    select(_DOTFILE_COLUMNS.scope, _DOTFILE_COLUMNS.path, _DOTFILE_COLUMNS.permission, _DOTFILE_COLUMNS.data)
    .where(_IS_OF_OWNERS)
    .order_by(_DOTFILE_COLUMNS.scope, _DOTFILE_COLUMNS.path)
)
_SCRIPT_QUERY = Prepared(
    select(_SCRIPT_TABLE.c.script).where(_SCRIPT_TABLE.c.access_key == parameter(_SCRIPT_TABLE.c.access_key))
)
_OWNER_KEYS: Mapping[DotfileScope, Column[Any]] = {
    DotfileScope.DOMAIN: domains.c.name,
    DotfileScope.GROUP: groups.c.id,
    DotfileScope.USER: keypairs.c.access_key,
}


class SqlDotfileStore:
    """Implements :class:`ai.backend.manager.dotfiles.store.DotfileStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def dotfiles(self, owner: DotfileOwner) -> list[Dotfile]:
        return [dotfile for _, dotfile in await self.dotfiles_of([owner])]

    async def put_dotfile(self, owner: DotfileOwner, dotfile: Dotfile, *, is_new: bool) -> None:
        row = {"scope": owner.scope, "owner": owner.name, **row_of(dotfile)}

        def work(s: Connection) -> None:
            _lock_owner(s, owner)
            stored_dotfiles = [
                Dotfile(**stored_row._mapping)
                for stored_row in s.execute(
                    select(_DOTFILE_COLUMNS.path, _DOTFILE_COLUMNS.permission, _DOTFILE_COLUMNS.data).where(
                        _is_of_owner(owner)
                    )
                )
            ]
            add_or_replace_dotfile(stored_dotfiles, dotfile, is_new=is_new)
            s.execute(delete(_DOTFILE_TABLE).where(_is_of_owner(owner), _DOTFILE_COLUMNS.path == dotfile.path))
            s.execute(insert(_DOTFILE_TABLE), row)

        await self._db.run_write(work)

    async def drop_dotfile(self, owner: DotfileOwner, path: str) -> bool:
        return bool(
            await self._db.execute(delete(_DOTFILE_TABLE).where(_is_of_owner(owner), _DOTFILE_COLUMNS.path == path))
        )

    async def dotfiles_of(self, owners: Sequence[DotfileOwner]) -> list[tuple[DotfileScope, Dotfile]]:
        rows = await self._db.fetch(
            _DOTFILES_OF_OWNERS_QUERY, {"owners": [f"{owner.scope} {owner.name}" for owner in owners]}
        )
        return [(row.scope, Dotfile(path=row.path, permission=row.permission, data=row.data)) for row in rows]

    async def bootstrap_script(self, access_key: AccessKey) -> str:
        rows = await self._db.fetch(_SCRIPT_QUERY, {"access_key": access_key})
        return rows[0].script if rows else ""

    async def put_bootstrap_script(self, access_key: AccessKey, script: str) -> None:
        def work(s: Connection) -> None:
            _lock_owner(s, DotfileOwner(scope=DotfileScope.USER, name=access_key))
            s.execute(delete(_SCRIPT_TABLE).where(_SCRIPT_TABLE.c.access_key == access_key))
            if script:
                s.execute(insert(_SCRIPT_TABLE), {"access_key": access_key, "script": script})

        await self._db.run_write(work)


def _is_of_owner(owner: DotfileOwner) -> ColumnElement[bool]:
    return and_(_DOTFILE_COLUMNS.scope == owner.scope, _DOTFILE_COLUMNS.owner == owner.name)


def _lock_owner(s: Connection, owner: DotfileOwner) -> None:
    """Locks the row of the owner of dotfiles, so that concurrent changes together do not exceed the owner's limits.

    SQLite has only one writer at a time anyway.
    """
    key = _OWNER_KEYS[owner.scope]
    s.execute(select(key).where(key == owner.name).with_for_update())
