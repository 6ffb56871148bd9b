"""Stores dotfiles and bootstrap scripts in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, and_, delete, false, insert, or_, select

from ai.backend.common.ids import AccessKey
from ai.backend.infra.database import Database
from ai.backend.infra.database.rows import row_of
from ai.backend.manager.dotfiles import tables as t
from ai.backend.manager.dotfiles.model import Dotfile, DotfileOwner, DotfileScope, with_dotfile
from ai.backend.manager.identity.tables import domains, groups, keypairs

c = t.dotfiles.c
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
            _lock(s, owner)
            stored = [
                Dotfile(**r._mapping) for r in s.execute(select(c.path, c.permission, c.data).where(_is_of(owner)))
            ]
            with_dotfile(stored, dotfile, is_new=is_new)
            s.execute(delete(t.dotfiles).where(_is_of(owner), c.path == dotfile.path))
            s.execute(insert(t.dotfiles), row)

        await self._db.run_write(work)

    async def drop_dotfile(self, owner: DotfileOwner, path: str) -> bool:
        return bool(await self._db.execute(delete(t.dotfiles).where(_is_of(owner), c.path == path)))

    async def dotfiles_of(self, owners: Sequence[DotfileOwner]) -> list[tuple[DotfileScope, Dotfile]]:
        query = select(c.scope, c.path, c.permission, c.data).order_by(c.scope, c.path)
        rows = await self._db.fetch(query.where(or_(false(), *map(_is_of, owners))))
        return [(row.scope, Dotfile(path=row.path, permission=row.permission, data=row.data)) for row in rows]

    async def bootstrap_script(self, access_key: AccessKey) -> str:
        rows = await self._db.fetch(
            select(t.bootstrap_scripts.c.script).where(t.bootstrap_scripts.c.access_key == access_key)
        )
        return rows[0].script if rows else ""

    async def put_bootstrap_script(self, access_key: AccessKey, script: str) -> None:
        def work(s: Connection) -> None:
            _lock(s, DotfileOwner(scope=DotfileScope.USER, name=access_key))
            s.execute(delete(t.bootstrap_scripts).where(t.bootstrap_scripts.c.access_key == access_key))
            if script:
                s.execute(insert(t.bootstrap_scripts), {"access_key": access_key, "script": script})

        await self._db.run_write(work)


def _is_of(owner: DotfileOwner) -> ColumnElement[bool]:
    return and_(c.scope == owner.scope, c.owner == owner.name)


def _lock(s: Connection, owner: DotfileOwner) -> None:
    """Locks the row of an owner, so that concurrent changes keep the limits. SQLite has one writer anyway."""
    key = _OWNER_KEYS[owner.scope]
    s.execute(select(key).where(key == owner.name).with_for_update())
