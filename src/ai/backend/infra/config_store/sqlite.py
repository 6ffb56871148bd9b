"""Stores configuration in two tables of the manager's database, for installations without etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, Connection, Integer, MetaData, Row, String, Table, Text, delete, func, insert, select
from sqlalchemy.sql import ColumnElement

from ai.backend.infra.bus import Signal
from ai.backend.infra.config_store.memory import covers
from ai.backend.infra.config_store.store import GLOBAL, ConfigChange, ConfigScope, ScopeKind, check_key, check_value
from ai.backend.infra.database import Database, naming_convention
from ai.backend.infra.database.prepared import IsOneOf, Prepared, parameter

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

_ENTRIES_OF_KEY = Prepared(
    select(config_entries.c.scope, config_entries.c.key, config_entries.c.value).where(
        config_entries.c.key == parameter(config_entries.c.key), IsOneOf(config_entries.c.scope, "scopes")
    )
)


def _scope_at(path: str) -> ConfigScope:
    kind, _, name = path.partition("/")
    return ConfigScope(ScopeKind(kind), name)


def _is_at_or_below(column: Column[str], prefix: str) -> ColumnElement[bool]:
    trimmed_prefix = prefix.rstrip("/")
    return (column == prefix) | column.startswith(trimmed_prefix + "/", autoescape=True) if prefix else column != ""


def _values_by_key(rows: Sequence[Any], scopes: Sequence[ConfigScope]) -> dict[str, str]:
    """Returns the values of entries by key.

    If several scopes have the same key, the value of the last scope is returned.
    """
    position_of_scope = {scope.path: position for position, scope in enumerate(scopes)}
    return dict(
        sorted({row.key: row.value for row in sorted(rows, key=lambda row: position_of_scope[row.scope])}.items())
    )


def _newest_revision(connection: Connection) -> int:
    return connection.execute(select(func.max(config_changes.c.revision))).scalar_one() or 0


def _change_of(row: Row[Any]) -> ConfigChange:
    return ConfigChange(revision=row.revision, scope=_scope_at(row.scope), key=row.key, value=row.value)


class SQLiteConfigStore:
    """Stores configuration in SQLite or PostgreSQL, with the last ``history`` changes for watches that resume.

    Changes by other processes are seen within ``poll_interval_s``.
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
        parameters = {"key": check_key(key), "scopes": [scope.path for scope in scopes]}
        return _values_by_key(await self._db.fetch(_ENTRIES_OF_KEY, parameters), scopes).get(key)

    async def get_prefix(self, prefix: str, *, scopes: Sequence[ConfigScope] = (GLOBAL,)) -> dict[str, str]:
        return await self._select(_is_at_or_below(config_entries.c.key, prefix), scopes)

    async def _select(self, condition: ColumnElement[bool], scopes: Sequence[ConfigScope]) -> dict[str, str]:
        entries = config_entries.c
        query = select(entries.scope, entries.key, entries.value).where(
            condition, entries.scope.in_([config_scope.path for config_scope in scopes])
        )
        return _values_by_key(await self._db.fetch(query), scopes)

    async def put_many(self, values: Mapping[str, str], *, scope: ConfigScope = GLOBAL) -> int:
        checked_values = {check_key(raw_key): check_value(raw_value) for raw_key, raw_value in values.items()}

        def put_values(connection: Connection) -> int:
            for key, value in checked_values.items():
                revision = self._record(connection, scope, key, value)
                connection.execute(
                    delete(config_entries).where(config_entries.c.scope == scope.path, config_entries.c.key == key)
                )
                connection.execute(
                    insert(config_entries).values(scope=scope.path, key=key, value=value, revision=revision)
                )
            return _newest_revision(connection)

        newest_revision = await self._db.run_write(put_values)
        self._wake()
        return newest_revision

    async def delete(self, key: str, *, scope: ConfigScope = GLOBAL, prefix: bool = False) -> int:
        entries = config_entries.c
        is_deleted = (entries.scope == scope.path) & (
            _is_at_or_below(entries.key, key) if prefix else entries.key == key
        )

        def delete_entries(connection: Connection) -> int:
            removed_keys = connection.execute(select(entries.key).where(is_deleted)).scalars().all()
            for removed_key in removed_keys:
                self._record(connection, scope, removed_key, None)
            connection.execute(delete(config_entries).where(is_deleted))
            return len(removed_keys)

        removed_count = await self._db.run_write(delete_entries)
        self._wake()
        return removed_count

    async def watch(self, prefix: str, *, after: int | None = None) -> AsyncIterator[ConfigChange]:
        signal = Signal()
        self._signals.add(signal)
        try:
            last_revision = await self.revision() if after is None else after
            for change in await self._present_if_dropped(prefix, last_revision):
                last_revision = max(last_revision, change.revision)
                yield change
            while True:
                changes = await self._changes_after(last_revision)
                for change in changes:
                    last_revision = change.revision
                    if covers(prefix, change.key):
                        yield change
                if not changes:
                    await signal.wait(self._poll_interval_s)
        finally:
            self._signals.discard(signal)

    async def revision(self) -> int:
        return await self._db.run_read(_newest_revision)

    async def read_all(self) -> tuple[int, list[ConfigChange]]:
        query = select(config_entries).order_by(config_entries.c.revision)
        return await self._db.run_read(
            lambda connection: (_newest_revision(connection), [_change_of(row) for row in connection.execute(query)])
        )

    async def forget_past(self, keys: Collection[str]) -> None:
        """Drops the earlier values of the given keys. Watches that resume receive the present values."""
        change_columns, entry_columns = config_changes.c, config_entries.c
        present_revisions = select(entry_columns.revision).where(entry_columns.key.in_(keys))
        deletion = delete(config_changes).where(
            change_columns.key.in_(keys), change_columns.revision.not_in(present_revisions)
        )
        await self._db.execute(deletion)

    def _record(self, connection: Connection, scope: ConfigScope, key: str, value: str | None) -> int:
        statement = insert(config_changes).values(scope=scope.path, key=key, value=value)
        revision: int = connection.execute(statement.returning(config_changes.c.revision)).scalar_one()
        connection.execute(delete(config_changes).where(config_changes.c.revision <= revision - self._history))
        return revision

    async def _changes_after(self, revision: int) -> list[ConfigChange]:
        query = select(config_changes).where(config_changes.c.revision > revision).order_by(config_changes.c.revision)
        return [_change_of(row) for row in await self._db.fetch(query.limit(1000))]

    async def _present_if_dropped(self, prefix: str, revision: int) -> list[ConfigChange]:
        """Returns the present values if changes after ``revision`` have been dropped already."""
        columns = config_entries.c
        query = select(config_entries).where(_is_at_or_below(columns.key, prefix)).order_by(columns.revision)

        def read_if_dropped(connection: Connection) -> list[ConfigChange]:
            oldest_revision = connection.execute(select(func.min(config_changes.c.revision))).scalar_one()
            return (
                []
                if oldest_revision is None or oldest_revision <= revision + 1
                else [_change_of(row) for row in connection.execute(query)]
            )

        return await self._db.run_read(read_if_dropped)

    def _wake(self) -> None:
        for signal in self._signals:
            signal.set()
