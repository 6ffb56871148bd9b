"""The configuration store of the embedded cluster: two tables beside the manager's in the same SQLite file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from sqlalchemy import Column, Integer, MetaData, String, Table, Text, delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql import ColumnElement

from ai.backend.infra.bus import Signal
from ai.backend.infra.config_store.memory import covers
from ai.backend.infra.config_store.port import (
    GLOBAL,
    ConfigChange,
    ConfigScope,
    ScopeKind,
    check_key,
    check_value,
)
from ai.backend.infra.database import Database, naming_convention

config_metadata = MetaData(naming_convention=naming_convention)
config_entries = Table(
    "config_entries",
    config_metadata,
    Column("scope", String(128), primary_key=True),
    Column("key", String(1024), primary_key=True),
    Column("value", Text, nullable=False),
    Column("revision", Integer, nullable=False),
)
config_changes = Table(
    "config_changes",
    config_metadata,
    Column("revision", Integer, primary_key=True, autoincrement=True),
    Column("scope", String(128), nullable=False),
    Column("key", String(1024), nullable=False),
    Column("value", Text, nullable=True),
    sqlite_autoincrement=True,
)


def _scope(path: str) -> ConfigScope:
    kind, _, name = path.partition("/")
    return ConfigScope(ScopeKind(kind), name)


def _below(column: Column[str], prefix: str) -> ColumnElement[bool]:
    trimmed = prefix.rstrip("/")
    return (column == prefix) | column.startswith(trimmed + "/", autoescape=True) if prefix else column != ""


class SQLiteConfigStore:
    """Watches of this process wake at once; changes by other processes are seen within ``poll_interval_s``.

    ``history`` changes are kept for watches that resume.
    """

    def __init__(self, database: Database, *, poll_interval_s: float = 1.0, history: int = 10_000) -> None:
        self._db = database
        self._poll_interval_s = poll_interval_s
        self._history = history
        self._signals: set[Signal] = set()

    async def setup(self) -> None:
        """Create the tables if they are not there. Their shape is fixed; a change would need a migration."""
        await self._db.run_sync(config_metadata.create_all)

    async def get(self, key: str, *, scopes: Sequence[ConfigScope] = (GLOBAL,)) -> str | None:
        check_key(key)
        return (await self._select(config_entries.c.key == key, scopes)).get(key)

    async def get_prefix(self, prefix: str, *, scopes: Sequence[ConfigScope] = (GLOBAL,)) -> dict[str, str]:
        return await self._select(_below(config_entries.c.key, prefix), scopes)

    async def _select(self, condition: ColumnElement[bool], scopes: Sequence[ConfigScope]) -> dict[str, str]:
        entries = config_entries.c
        query = select(entries.scope, entries.key, entries.value).where(
            condition, entries.scope.in_([s.path for s in scopes])
        )
        async with self._db.read() as session:
            rows = (await session.execute(query)).all()
        order = {scope.path: i for i, scope in enumerate(scopes)}
        return dict(sorted({r.key: r.value for r in sorted(rows, key=lambda r: order[r.scope])}.items()))

    async def put_many(self, values: Mapping[str, str], *, scope: ConfigScope = GLOBAL) -> int:
        checked = {check_key(k): check_value(v) for k, v in values.items()}
        async with self._db.write() as session:
            for key, value in checked.items():
                revision = await self._record(session, scope, key, value)
                await session.execute(
                    delete(config_entries).where(config_entries.c.scope == scope.path, config_entries.c.key == key)
                )
                await session.execute(
                    insert(config_entries).values(scope=scope.path, key=key, value=value, revision=revision)
                )
            newest = await self._newest(session)
        self._wake()
        return newest

    async def delete(self, key: str, *, scope: ConfigScope = GLOBAL, prefix: bool = False) -> int:
        entries = config_entries.c
        match = (entries.scope == scope.path) & (_below(entries.key, key) if prefix else entries.key == key)
        async with self._db.write() as session:
            gone = (await session.execute(select(entries.key).where(match))).scalars().all()
            for name in gone:
                await self._record(session, scope, name, None)
            await session.execute(delete(config_entries).where(match))
        self._wake()
        return len(gone)

    async def watch(self, prefix: str, *, after: int | None = None) -> AsyncIterator[ConfigChange]:
        signal = Signal()
        self._signals.add(signal)
        try:
            position = await self.revision() if after is None else after
            for change in await self._reset(prefix, position):
                position = max(position, change.revision)
                yield change
            while True:
                changes = await self._changes(position)
                for change in changes:
                    position = change.revision
                    if covers(prefix, change.key):
                        yield change
                if not changes:
                    await signal.wait(self._poll_interval_s)
        finally:
            self._signals.discard(signal)

    async def revision(self) -> int:
        async with self._db.read() as session:
            return await self._newest(session)

    @staticmethod
    async def _newest(session: AsyncSession) -> int:
        return (await session.execute(select(func.max(config_changes.c.revision)))).scalar_one() or 0

    async def _record(self, session: AsyncSession, scope: ConfigScope, key: str, value: str | None) -> int:
        statement = insert(config_changes).values(scope=scope.path, key=key, value=value)
        revision: int = (await session.execute(statement.returning(config_changes.c.revision))).scalar_one()
        await session.execute(delete(config_changes).where(config_changes.c.revision <= revision - self._history))
        return revision

    async def _changes(self, after: int) -> list[ConfigChange]:
        query = select(config_changes).where(config_changes.c.revision > after).order_by(config_changes.c.revision)
        async with self._db.read() as session:
            rows = (await session.execute(query.limit(1000))).all()
        return [ConfigChange(revision=r.revision, scope=_scope(r.scope), key=r.key, value=r.value) for r in rows]

    async def _reset(self, prefix: str, after: int) -> list[ConfigChange]:
        """The present values, if changes behind ``after`` have already been forgotten."""
        async with self._db.read() as session:
            oldest = (await session.execute(select(func.min(config_changes.c.revision)))).scalar_one()
            if oldest is None or oldest <= after + 1:
                return []
            rows = (
                await session.execute(
                    select(config_entries)
                    .where(_below(config_entries.c.key, prefix))
                    .order_by(config_entries.c.revision)
                )
            ).all()
        return [ConfigChange(revision=r.revision, scope=_scope(r.scope), key=r.key, value=r.value) for r in rows]

    def _wake(self) -> None:
        for signal in self._signals:
            signal.set()
