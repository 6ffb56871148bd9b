"""The database engine with its read and write transactions.

SQLite rules: WAL; ``synchronous = NORMAL``, so a commit survives the death of every process at any instruction but the
newest ones may be lost when the machine loses power; ``BEGIN IMMEDIATE`` for every write, since the driver's deferred
default loses updates; one writer at a time in this process, and up to ``busy_timeout_s`` of patience for others.

PostgreSQL rules: one writer at a time in the whole installation, and commits that are shared, see
:mod:`ai.backend.infra.database.postgres`; reads are REPEATABLE READ, READ ONLY.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Executable, Row, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.sql.dml import UpdateBase

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.database.postgres import GroupCommit, lock_writers, translate_error, with_retries
from ai.backend.infra.database.threads import SqliteThreads

_DRIVERS = {"postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg", "sqlite": "sqlite+aiosqlite"}
_SNAPSHOT = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
_WRITE = "backendai_write"
T = TypeVar("T")

write_fence: ContextVar[Callable[[Connection], None] | None] = ContextVar("write_fence", default=None)
"""A context's check before each ``run_write``; an exception rolls the transaction back."""


def _behind_fence(work: Callable[[Connection], T]) -> Callable[[Connection], T]:
    check = write_fence.get()
    if check is None:
        return work

    def fenced(connection: Connection) -> T:
        check(connection)
        return work(connection)

    return fenced


class Database:
    """Runs transactions on one database.

    Args:
        url: an SQLAlchemy URL (``sqlite:///...`` or ``postgresql://...``); a driver need not be named.
        pool_size: connections kept, at most.
        busy_timeout_s: how long a SQLite write waits for another process, and how long a PostgreSQL that is away is
            waited for.

    Raises:
        InvalidInput: no such database is known, or its extra is not installed.
    """

    def __init__(self, url: str, *, pool_size: int = 5, busy_timeout_s: float = 10.0) -> None:
        self.url = url
        self.engine = _engine(url, pool_size)
        self._is_sqlite = self.engine.dialect.name == "sqlite"
        self._patience_s = busy_timeout_s
        self._writer = asyncio.Lock()
        self._commits = None if self._is_sqlite else GroupCommit(self.engine, patience_s=busy_timeout_s)
        self._threads: SqliteThreads | None = None
        if self._is_sqlite:
            self._set_up_sqlite(self.engine.sync_engine, busy_timeout_s)
            if self.engine.url.database not in (None, "", ":memory:"):
                self._threads = SqliteThreads(
                    self.engine.url,
                    set_up=lambda engine: self._set_up_sqlite(engine, busy_timeout_s),
                    write_option=_WRITE,
                )

    @property
    def is_shared(self) -> bool:
        """True if other hosts may use the database at the same time."""
        return not self._is_sqlite

    @staticmethod
    def _set_up_sqlite(engine: Engine, busy_timeout_s: float) -> None:
        @event.listens_for(engine, "connect")
        def on_connect(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
            connection.isolation_level = None
            cursor = connection.cursor()
            for pragma in (
                f"busy_timeout = {int(busy_timeout_s * 1000)}",
                "journal_mode = WAL",
                "synchronous = NORMAL",
                "foreign_keys = ON",
                "temp_store = MEMORY",
                "cache_size = -512",
            ):
                cursor.execute(f"PRAGMA {pragma}")
            cursor.close()

        @event.listens_for(engine, "begin")
        def on_begin(connection: Connection) -> None:
            write = connection.get_execution_options().get(_WRITE, False)
            connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    async def run_read(self, work: Callable[[Connection], T]) -> T:
        """Runs ``work(connection)`` in one read transaction; on SQLite in a thread."""
        if self._threads is not None:
            return await self._threads.read(work)
        if self._is_sqlite:
            return await self._read_once(work, {})
        return await with_retries(lambda: self._read_once(work, _SNAPSHOT), self._patience_s)

    async def _read_once(self, work: Callable[[Connection], T], options: dict[str, Any]) -> T:
        async with self.engine.connect() as connection:
            await connection.execution_options(**options)
            return await connection.run_sync(work)

    async def run_write(self, work: Callable[[Connection], T]) -> T:
        """Runs ``work(connection)`` in one write transaction and commits, or rolls back when it raises.

        As one piece, with nothing else of this process in between: if the caller is cancelled meanwhile, it still
        commits. ``work`` may be run again while nothing of it is committed, so it must not count its calls.

        Raises:
            Unavailable: the database is away, or its disk is full. InvalidInput: it cannot hold such a value.
        """
        work = _behind_fence(work)
        if self._threads is not None:
            return await self._threads.write(work)
        if self._commits is not None:
            return await self._commits.write(work)
        result: T = await self.run_sync(work)
        return result

    async def fetch(self, query: Executable, parameters: Mapping[str, Any] | None = None) -> Sequence[Row[Any]]:
        """Returns the rows of a query, in a read transaction of its own."""
        return await self.run_read(lambda s: s.execute(query, parameters).all())

    async def execute(self, statement: UpdateBase, parameters: Any = None) -> int:
        """Executes a statement in a write transaction of its own; returns how many rows it changed."""
        return await self.run_write(lambda s: s.execute(statement, parameters).rowcount)

    async def rest(self) -> None:
        """Closes idle connections, which are reopened when needed."""
        if self._threads is not None:
            await self._threads.rest()

    async def close(self) -> None:
        if self._threads is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._threads.close)
        if self._commits is not None:
            await self._commits.close()
        await self.engine.dispose()

    def __repr__(self) -> str:
        return f"Database({self.engine.url.render_as_string(hide_password=True)!r})"

    async def run_sync(self, function: Any) -> Any:
        """Runs ``function(sync connection)`` in one write transaction; for migrations and table creation.

        Raises:
            Unavailable: the database is away.
        """
        try:
            async with self._writer, self.engine.connect() as connection:
                await connection.execution_options(**{_WRITE: True})
                async with connection.begin():
                    if not self._is_sqlite:
                        await connection.run_sync(lock_writers)
                    return await connection.run_sync(function)
        except Exception as error:
            translated = translate_error(error) if not self._is_sqlite else error
            if translated is error:
                raise
            raise translated from error


def _engine(url: str, pool_size: int) -> AsyncEngine:
    scheme, separator, rest = url.partition("://")
    try:
        return create_async_engine(_DRIVERS.get(scheme, scheme) + separator + rest, pool_size=pool_size, max_overflow=5)
    except ModuleNotFoundError as e:
        raise InvalidInput(f"the database {scheme} needs {e.name}: pip install 'backendai[postgres]'") from None
    except ArgumentError:
        raise InvalidInput(f"no database is named by {scheme}://...", data={"url": "malformed"}) from None
