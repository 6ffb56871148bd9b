"""Stores dotfiles and bootstrap scripts in SQL."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, and_, delete, insert, or_, select

from ai.backend.common.ids import AccessKey
from ai.backend.infra.database import Database
from ai.backend.manager.dotfiles import tables as t
from ai.backend.manager.dotfiles.model import Dotfile, DotfileOwner, DotfileScope, with_dotfile
from ai.backend.manager.identity.tables import domains, groups, keypairs


class SqlDotfileStore:
    """Implements :class:`ai.backend.manager.dotfiles.store.DotfileStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def dotfiles(self, owner: DotfileOwner) -> list[Dotfile]:
        return await self._db.run_read(lambda s: _of(s, owner))

    async def put_dotfile(self, owner: DotfileOwner, dotfile: Dotfile, *, is_new: bool) -> None:
        c = t.dotfiles.c

        def work(s: Connection) -> None:
            _lock(s, owner)
            with_dotfile(_of(s, owner), dotfile, is_new=is_new)
            s.execute(delete(t.dotfiles).where(c.scope == owner.scope, c.owner == owner.name, c.path == dotfile.path))
            row = {"path": dotfile.path, "permission": dotfile.permission, "data": dotfile.data}
            s.execute(insert(t.dotfiles), {"scope": owner.scope, "owner": owner.name, **row})

        await self._db.run_write(work)

    async def drop_dotfile(self, owner: DotfileOwner, path: str) -> bool:
        c = t.dotfiles.c

        def work(s: Connection) -> bool:
            query = delete(t.dotfiles).where(c.scope == owner.scope, c.owner == owner.name, c.path == path)
            return bool(s.execute(query).rowcount)

        return await self._db.run_write(work)

    async def dotfiles_of(self, owners: Sequence[DotfileOwner]) -> list[tuple[DotfileScope, Dotfile]]:
        c = t.dotfiles.c
        if not owners:
            return []
        is_of_owners = or_(*(and_(c.scope == owner.scope, c.owner == owner.name) for owner in owners))
        query = select(c.scope, c.path, c.permission, c.data).where(is_of_owners).order_by(c.scope, c.path)

        def work(s: Connection) -> list[tuple[DotfileScope, Dotfile]]:
            return [
                (scope, Dotfile(path=path, permission=permission, data=data))
                for scope, path, permission, data in s.execute(query)
            ]

        return await self._db.run_read(work)

    async def bootstrap_script(self, access_key: AccessKey) -> str:
        c = t.bootstrap_scripts.c

        def work(s: Connection) -> str:
            return s.execute(select(c.script).where(c.access_key == access_key)).scalar_one_or_none() or ""

        return await self._db.run_read(work)

    async def put_bootstrap_script(self, access_key: AccessKey, script: str) -> None:
        c = t.bootstrap_scripts.c

        def work(s: Connection) -> None:
            _lock(s, DotfileOwner(scope=DotfileScope.USER, name=access_key))
            s.execute(delete(t.bootstrap_scripts).where(c.access_key == access_key))
            if script:
                s.execute(insert(t.bootstrap_scripts), {"access_key": access_key, "script": script})

        await self._db.run_write(work)


def _of(s: Connection, owner: DotfileOwner) -> list[Dotfile]:
    c = t.dotfiles.c
    query = select(c.path, c.permission, c.data).where(c.scope == owner.scope, c.owner == owner.name).order_by(c.path)
    return [Dotfile(path=path, permission=permission, data=data) for path, permission, data in s.execute(query)]


def _lock(s: Connection, owner: DotfileOwner) -> None:
    """Locks the row of an owner, so that concurrent changes keep the limits. SQLite has one writer anyway."""
    key = {
        DotfileScope.DOMAIN: domains.c.name,
        DotfileScope.GROUP: groups.c.id,
        DotfileScope.USER: keypairs.c.access_key,
    }[owner.scope]
    s.execute(select(key).where(key == owner.name).with_for_update())
