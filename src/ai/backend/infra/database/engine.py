"""The engine and its two kinds of transaction.

SQLite rules: WAL; ``synchronous = NORMAL``, so a commit survives the death of every process at any instruction but the
newest ones may be lost when the machine loses power; ``BEGIN IMMEDIATE`` for every write, since the driver's deferred
default loses updates; one writer at a time in this process, and up to ``busy_timeout_s`` of patience for others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from ai.backend.infra.database.threads import SqliteThreads

_WRITE = "backendai_write"
T = TypeVar("T")


class Database:
    """One database.

    Args:
        url: an SQLAlchemy async URL (``sqlite+aiosqlite:///...`` or ``postgresql+asyncpg://...``).
        pool_size: connections kept, at most.
        busy_timeout_s: how long a SQLite write waits for another process.
    """

    def __init__(self, url: str, *, pool_size: int = 5, busy_timeout_s: float = 10.0) -> None:
        self.url = url
        self.engine = create_async_engine(url, pool_size=pool_size, max_overflow=5)
        self._is_sqlite = self.engine.dialect.name == "sqlite"
        self._writer = asyncio.Lock()
        self._threads: SqliteThreads | None = None
        if self._is_sqlite:
            self._set_up_sqlite(self.engine.sync_engine, busy_timeout_s)
            if self.engine.url.database not in (None, "", ":memory:"):
                self._threads = SqliteThreads(
                    self.engine.url,
                    set_up=lambda engine: self._set_up_sqlite(engine, busy_timeout_s),
                    write_option=_WRITE,
                )

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

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """A session for reading: one consistent snapshot, rolled back at the end."""
        async with self.engine.connect() as connection, self._session(connection) as session:
            yield session

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncSession]:
        """A session that commits at the end of the block, or rolls back whole when it raises.

        Inside, await nothing but the database: the only writer waits for you.
        """
        if self._is_sqlite:
            async with self._writer, self._write() as session:
                yield session
        else:
            async with self._write() as session:
                yield session

    @asynccontextmanager
    async def _write(self) -> AsyncIterator[AsyncSession]:
        async with self.engine.connect() as connection:
            await connection.execution_options(**{_WRITE: True})
            async with self._session(connection) as session:
                yield session
                await session.commit()

    @staticmethod
    def _session(connection: AsyncConnection) -> AsyncSession:
        return AsyncSession(bind=connection, expire_on_commit=False, autoflush=False)

    async def run_read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work(connection)`` in one read transaction; on SQLite as one piece in a thread."""
        if self._threads is not None:
            return await self._threads.read(work)
        async with self.engine.connect() as connection:
            return await connection.run_sync(work)

    async def run_write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work(connection)`` in one write transaction and commit, or roll back whole when it raises.

        On SQLite as one piece in the thread that writes: if the caller is cancelled meanwhile, it still commits.
        """
        if self._threads is not None:
            return await self._threads.write(work)
        result: T = await self.run_sync(work)
        return result

    async def close(self) -> None:
        if self._threads is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._threads.close)
        await self.engine.dispose()

    def __repr__(self) -> str:
        return f"Database({self.engine.url.render_as_string(hide_password=True)!r})"

    async def run_sync(self, function: Any) -> Any:
        """Run ``function(sync connection)`` in one write transaction; for migrations and table creation."""
        async with self._writer, self.engine.connect() as connection:
            await connection.execution_options(**{_WRITE: True})
            async with connection.begin():
                return await connection.run_sync(function)
