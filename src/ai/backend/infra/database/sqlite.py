"""Runs short SQLite transactions in the caller's thread, and long ones in separate threads."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, cast

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from ai.backend.common.errors import InvalidInput, Unavailable
from ai.backend.infra.database.ballast import Ballast
from ai.backend.infra.database.batching import DISK_FULL
from ai.backend.infra.database.prepared import run_on_sqlite

log = logging.getLogger(__name__)
T = TypeVar("T")
_READER_COUNT = 2
_INSTRUCTIONS_PER_CHECK = 1000
_MAX_CHECKS = 10
"""A transaction that executes more than 10,000 instructions of SQLite's virtual machine, about one millisecond, is
repeated in a thread."""
_MAX_CONSECUTIVE = 20
"""The number of transactions after which other tasks of the event loop run."""
_COMMITS_PER_CHECKPOINT = 128


class SqliteTransactions:
    """Runs transactions on a database file (docs/decisions/0040).

    A transaction begins in the thread of the event loop, on a connection that never waits. If it executes too many
    instructions, or the write lock is taken, it is rolled back and runs again in a thread: there is one thread for
    writes and there are a few for reads, each with its own connection.

    With WAL and ``synchronous = NORMAL`` a commit survives the death of every process, but the newest ones may be lost
    when the machine loses power. Writes ``BEGIN IMMEDIATE``, since the driver's deferred default loses updates, and
    wait in their thread up to ``busy_timeout_s`` for those of other processes. The event loop's thread never copies the
    log into the database file, which syncs files: the thread for writes does that. A full disk uses up the ballast.
    """

    def __init__(self, url: URL, *, busy_timeout_s: float, ballast_bytes: int = 0) -> None:
        sync_url = url.set(drivername="sqlite")
        self._engine = create_engine(sync_url, poolclass=NullPool, connect_args={"check_same_thread": False})
        self._busy_timeout_ms = int(busy_timeout_s * 1000)
        self._local = threading.local()
        self._inline = _InlineConnection()
        self._connections: list[_ThreadConnection] = [self._inline]
        self._consecutive = 0
        self._commits = 0
        self._is_checkpointing = False
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="db-write")
        self._readers = ThreadPoolExecutor(_READER_COUNT, thread_name_prefix="db-read")
        self._ballast = Ballast(Path(f"{url.database}.ballast"), ballast_bytes)
        self._writer.submit(self._ballast.fill)
        event.listen(self._engine, "connect", _set_up_connection)

    async def read(self, function: Callable[[Connection], T]) -> T:
        await self._let_others_run()
        try:
            return self._run_inline(function, is_write=False)
        except _NeedsThread:
            return await asyncio.get_running_loop().run_in_executor(self._readers, self._run, function, False)

    async def write(self, function: Callable[[Connection], T]) -> T:
        try:
            return await self._write(function)
        except Unavailable as error:
            if error.message != DISK_FULL or not self._ballast.release():
                raise
        return await self._write(function)

    async def _write(self, function: Callable[[Connection], T]) -> T:
        await self._let_others_run()
        try:
            result = self._run_inline(function, is_write=True)
        except _NeedsThread:
            return await asyncio.get_running_loop().run_in_executor(self._writer, self._run, function, True)
        self._commits += 1
        if self._commits % _COMMITS_PER_CHECKPOINT == 0:
            self._is_checkpointing = True
            self._writer.submit(self._checkpoint)
        return result

    async def _let_others_run(self) -> None:
        """Lets other tasks of the event loop run once if many transactions have run since the loop last turned."""
        if self._consecutive == 0:
            asyncio.get_running_loop().call_soon(self._reset_consecutive)
        self._consecutive += 1
        if self._consecutive > _MAX_CONSECUTIVE:
            await asyncio.sleep(0)

    def _reset_consecutive(self) -> None:
        self._consecutive = 0

    def _run_inline(self, function: Callable[[Connection], T], *, is_write: bool) -> T:
        """Runs a transaction in the event loop's thread. Raises _NeedsThread if nothing was done."""
        inline_connection = self._inline
        if (is_write and self._is_checkpointing) or not inline_connection.lock.acquire(blocking=False):
            raise _NeedsThread
        try:
            if inline_connection.connection is None:
                inline_connection.open(self._engine)
            inline_connection.checks = 0
            return self._transact(inline_connection, function, is_write)
        except OperationalError as error:
            if getattr(error.orig, "sqlite_errorname", "").startswith(("SQLITE_INTERRUPT", "SQLITE_BUSY")):
                raise _NeedsThread from None
            raise
        finally:
            inline_connection.lock.release()

    def _run(self, function: Callable[[Connection], T], is_write: bool) -> T:
        thread_connection = self._thread_connection()
        with thread_connection.lock:
            if thread_connection.connection is None:
                thread_connection.open(self._engine, f"busy_timeout = {self._busy_timeout_ms}")
            return self._transact(thread_connection, function, is_write)

    def _thread_connection(self) -> _ThreadConnection:
        thread_connection: _ThreadConnection | None = getattr(self._local, "connection", None)
        if thread_connection is None:
            thread_connection = self._local.connection = _ThreadConnection()
            self._connections.append(thread_connection)
        return thread_connection

    def _checkpoint(self) -> None:
        """Copies the write-ahead log of SQLite into the database file.

        Writes of this process wait behind the copy in their thread, since the log grows without end if each checkpoint
        leaves some commits.
        """
        try:
            with self._engine.connect() as connection:
                driver_connection = _driver_connection(connection)
                driver_connection.execute(f"PRAGMA busy_timeout = {self._busy_timeout_ms}")
                driver_connection.execute("PRAGMA wal_checkpoint(RESTART)")
        except (sqlite3.Error, SQLAlchemyError) as error:
            log.warning("the log of the database was not copied into its file; a later commit tries again: %s", error)
        finally:
            self._is_checkpointing = False
        self._ballast.fill()

    @staticmethod
    def _transact(thread_connection: _ThreadConnection, function: Callable[[Connection], T], is_write: bool) -> T:
        connection = thread_connection.connection
        assert connection is not None
        try:
            run_on_sqlite(connection, "BEGIN IMMEDIATE" if is_write else "BEGIN")
            result = function(connection)
            run_on_sqlite(connection, "COMMIT" if is_write else "ROLLBACK")
            return result
        except OperationalError as error:
            if "disk is full" in str(error.orig):
                raise Unavailable(DISK_FULL) from error
            raise
        except OverflowError:
            raise InvalidInput("A number is too large to be kept.") from None
        finally:
            _driver_connection(connection).rollback()  # does nothing after the end of the transaction

    async def online(self, function: Callable[[Connection], T]) -> T:
        return await self.write(function)

    async def vacuum(self) -> None:
        def vacuum_file() -> None:
            with self._engine.connect() as connection:
                driver_connection = _driver_connection(connection)
                driver_connection.execute(f"PRAGMA busy_timeout = {self._busy_timeout_ms}")
                driver_connection.execute("VACUUM")

        await asyncio.get_running_loop().run_in_executor(self._writer, vacuum_file)

    async def close_idle(self) -> None:
        """Closes idle connections and frees their caches. Each connection is reopened when needed."""
        await asyncio.get_running_loop().run_in_executor(self._readers, self._close_idle)

    def _close_idle(self) -> None:
        for thread_connection in list(self._connections):
            if thread_connection.lock.acquire(blocking=False):
                try:
                    thread_connection.close()
                finally:
                    thread_connection.lock.release()

    async def close(self) -> None:
        """Waits for running transactions, then closes every connection."""
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._writer.shutdown()
        self._readers.shutdown()
        for thread_connection in self._connections:
            thread_connection.close()
        self._connections.clear()
        self._engine.dispose()


class _NeedsThread(Exception):
    """Raised when a transaction was rolled back and must run in a thread."""


class _ThreadConnection:
    """Holds the connection of one thread. The connection is None while closed. The lock guards its use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: Connection | None = None

    def open(self, engine: Engine, *pragmas: str) -> None:
        connection = engine.connect()
        for pragma in pragmas:
            _driver_connection(connection).execute(f"PRAGMA {pragma}")
        connection.begin()  # SQLAlchemy's only transaction; each of the driver's is begun and ended without it
        self.connection = connection

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()


class _InlineConnection(_ThreadConnection):
    """Holds the connection of the event loop's thread. SQLite ends a transaction whose ``checks`` exceed the limit."""

    checks = 0

    def open(self, engine: Engine, *pragmas: str) -> None:
        super().open(engine, "busy_timeout = 0", "wal_autocheckpoint = 0", *pragmas)
        assert self.connection is not None
        _driver_connection(self.connection).set_progress_handler(self._is_too_long, _INSTRUCTIONS_PER_CHECK)

    def _is_too_long(self) -> bool:
        self.checks += 1
        return self.checks > _MAX_CHECKS


def _driver_connection(connection: Connection) -> sqlite3.Connection:
    return cast("sqlite3.Connection", connection.connection.dbapi_connection)


def _set_up_connection(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None
    pragmas = ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON", "temp_store = MEMORY")
    for pragma in (*pragmas, "cache_size = -512"):
        connection.execute(f"PRAGMA {pragma}")
