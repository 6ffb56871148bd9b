"""The configuration store of installations without etcd: two tables in the manager's database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, Connection, Integer, MetaData, Row, String, Table, Text, delete, func, insert, select
from sqlalchemy.sql import ColumnElement

from ai.backend.infra.bus import Signal
from ai.backend.infra.config_store.memory import covers
from ai.backend.infra.config_store.store import (
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


def _newest(s: Connection) -> int:
    return s.execute(select(func.max(config_changes.c.revision))).scalar_one() or 0


def _change(row: Row[Any]) -> ConfigChange:
    return ConfigChange(revision=row.revision, scope=_scope(row.scope), key=row.key, value=row.value)


class SQLiteConfigStore:
    """Stores configuration in SQLite or PostgreSQL, with the last ``history`` changes for watches that resume.

    Watches of this process wake at once; changes by other processes are seen within ``poll_interval_s``.
    """

    def __init__(self, database: Database, *, poll_interval_s: float = 1.0, history: int = 10_000) -> None:
        self._db = database
        self._poll_interval_s = poll_interval_s
        self._history = history
        self._signals: set[Signal] = set()

    async def setup(self) -> None:
        """Creates the tables if they do not exist. Their shape is fixed; a change would need a migration."""
        await self._db.run_write(config_metadata.create_all)

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
        rows = await self._db.run_read(lambda s: s.execute(query).all())
        order = {scope.path: i for i, scope in enumerate(scopes)}
        return dict(sorted({r.key: r.value for r in sorted(rows, key=lambda r: order[r.scope])}.items()))

    async def put_many(self, values: Mapping[str, str], *, scope: ConfigScope = GLOBAL) -> int:
        checked = {check_key(k): check_value(v) for k, v in values.items()}

        def work(s: Connection) -> int:
            for key, value in checked.items():
                revision = self._record(s, scope, key, value)
                s.execute(
                    delete(config_entries).where(config_entries.c.scope == scope.path, config_entries.c.key == key)
                )
                s.execute(insert(config_entries).values(scope=scope.path, key=key, value=value, revision=revision))
            return _newest(s)

        newest = await self._db.run_write(work)
        self._wake()
        return newest

    async def delete(self, key: str, *, scope: ConfigScope = GLOBAL, prefix: bool = False) -> int:
        entries = config_entries.c
        match = (entries.scope == scope.path) & (_below(entries.key, key) if prefix else entries.key == key)

        def work(s: Connection) -> int:
            removed = s.execute(select(entries.key).where(match)).scalars().all()
            for name in removed:
                self._record(s, scope, name, None)
            s.execute(delete(config_entries).where(match))
            return len(removed)

        removed = await self._db.run_write(work)
        self._wake()
        return removed

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
        return await self._db.run_read(_newest)

    async def present(self) -> tuple[int, list[ConfigChange]]:
        query = select(config_entries).order_by(config_entries.c.revision)
        return await self._db.run_read(lambda s: (_newest(s), [_change(row) for row in s.execute(query)]))

    async def forget_past(self, keys: Collection[str]) -> None:
        """Drops the earlier values of these keys; resuming watches get the present values."""
        c, entries = config_changes.c, config_entries.c
        present = select(entries.revision).where(entries.key.in_(keys))
        past = delete(config_changes).where(c.key.in_(keys), c.revision.not_in(present))
        await self._db.run_write(lambda s: s.execute(past))

    def _record(self, s: Connection, scope: ConfigScope, key: str, value: str | None) -> int:
        statement = insert(config_changes).values(scope=scope.path, key=key, value=value)
        revision: int = s.execute(statement.returning(config_changes.c.revision)).scalar_one()
        s.execute(delete(config_changes).where(config_changes.c.revision <= revision - self._history))
        return revision

    async def _changes(self, after: int) -> list[ConfigChange]:
        query = select(config_changes).where(config_changes.c.revision > after).order_by(config_changes.c.revision)
        rows = await self._db.run_read(lambda s: s.execute(query.limit(1000)).all())
        return [_change(row) for row in rows]

    async def _reset(self, prefix: str, after: int) -> list[ConfigChange]:
        """Returns the present values if changes after ``after`` have already been dropped."""
        entries = config_entries.c
        present = select(config_entries).where(_below(entries.key, prefix)).order_by(entries.revision)

        def work(s: Connection) -> list[ConfigChange]:
            oldest = s.execute(select(func.min(config_changes.c.revision))).scalar_one()
            return [] if oldest is None or oldest <= after + 1 else [_change(row) for row in s.execute(present)]

        return await self._db.run_read(work)

    def _wake(self) -> None:
        for signal in self._signals:
            signal.set()
