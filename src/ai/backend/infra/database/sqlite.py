"""Runs whole SQLite transactions in threads, because an asyncio driver switches threads for every statement."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from ai.backend.common.errors import Unavailable
from ai.backend.infra.database.ballast import Ballast

T = TypeVar("T")
_READER_COUNT = 2
_WRITE_OPTION = "backendai_write"
"""The execution option that marks a write transaction."""


class SqliteTransactions:
    """Runs transactions on a database file: one writer thread and a few readers, each with its own connection.

    With WAL and ``synchronous = NORMAL`` a commit survives the death of every process, but the newest ones may be lost
    when the machine loses power. Writes ``BEGIN IMMEDIATE``, since the driver's deferred default loses updates, and
    wait up to ``busy_timeout_s`` for those of other processes. On a full disk they use up the ballast, step by step.
    """

    def __init__(self, url: URL, *, busy_timeout_s: float, ballast_bytes: int = 0) -> None:
        self._ballast = Ballast(Path(f"{url.database}.ballast"), ballast_bytes)
        sync_url = url.set(drivername="sqlite")
        self._engine = create_engine(sync_url, poolclass=NullPool, connect_args={"check_same_thread": False})
        self._local = threading.local()
        self._connections: list[_ThreadConnection] = []
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="db-write")
        self._readers = ThreadPoolExecutor(_READER_COUNT, thread_name_prefix="db-read")
        pragmas = (
            f"busy_timeout = {int(busy_timeout_s * 1000)}",
            "journal_mode = WAL",
            "synchronous = NORMAL",
            "foreign_keys = ON",
            "temp_store = MEMORY",
            "cache_size = -512",
        )

        @event.listens_for(self._engine, "connect")
        def on_connect(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
            connection.isolation_level = None
            cursor = connection.cursor()
            for pragma in pragmas:
                cursor.execute(f"PRAGMA {pragma}")
            cursor.close()

        @event.listens_for(self._engine, "begin")
        def on_begin(connection: Connection) -> None:
            is_write = connection.get_execution_options().get(_WRITE_OPTION, False)
            connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")

    async def read(self, work: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._run, work, False)

    async def write(self, work: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._run, work, True)

    def _run(self, work: Callable[[Connection], T], is_write: bool) -> T:
        thread_connection: _ThreadConnection | None = getattr(self._local, "connection", None)
        if thread_connection is None:
            thread_connection = self._local.connection = _ThreadConnection()
            self._connections.append(thread_connection)
        with thread_connection.lock:
            if thread_connection.connection is None:
                thread_connection.connection = self._engine.connect().execution_options(**{_WRITE_OPTION: is_write})
            try:
                return self._transact(thread_connection.connection, work, is_write)
            except OperationalError as error:
                if "disk is full" not in str(error.orig):
                    raise
                if is_write and self._ballast.release():
                    with suppress(OperationalError):
                        return self._transact(thread_connection.connection, work, is_write)
                raise Unavailable("The disk of the database is full.") from error

    def _transact(self, connection: Connection, work: Callable[[Connection], T], is_write: bool) -> T:
        with connection.begin() as transaction:
            result = work(connection)
            if not is_write:
                transaction.rollback()
        if is_write:
            self._ballast.fill()
        return result

    async def vacuum(self) -> None:
        def work() -> None:
            with self._engine.connect() as connection:
                connection.connection.cursor().execute("VACUUM")

        await asyncio.get_running_loop().run_in_executor(self._writer, work)

    async def rest(self) -> None:
        """Closes idle connections with their caches; each is reopened when needed."""
        await asyncio.get_running_loop().run_in_executor(self._readers, self._rest)

    def _rest(self) -> None:
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


class _ThreadConnection:
    """The connection of one thread, None while closed. The lock guards its use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: Connection | None = None

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
