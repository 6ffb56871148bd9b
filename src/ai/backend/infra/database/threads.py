"""Runs whole SQLite transactions in threads.

Every statement through an asyncio driver of SQLite is a journey to the driver's thread and back, and a transaction
makes a dozen of them. Here the transaction is a plain function that runs in the thread as one piece: one journey, and
nothing else can be awaited while the writer is held.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from ai.backend.common.errors import Unavailable

T = TypeVar("T")
_READERS = 2


class SqliteThreads:
    """One writer thread and a few reader threads, each with its own connection.

    Args:
        url: of a database file; its driver is ignored.
        set_up: prepares the engine (pragmas, how a transaction begins).
        write_option: the execution option that marks a write transaction.
    """

    def __init__(self, url: URL, *, set_up: Callable[[Engine], None], write_option: str) -> None:
        sync_url = url.set(drivername="sqlite")
        self._engine = create_engine(sync_url, poolclass=NullPool, connect_args={"check_same_thread": False})
        set_up(self._engine)
        self._write_option = write_option
        self._local = threading.local()
        self._pooled_connections: list[_PooledConnection] = []
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="db-write")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="db-read")

    def _pooled_connection(self) -> _PooledConnection:
        """Returns this thread's connection."""
        pooled: _PooledConnection | None = getattr(self._local, "pooled", None)
        if pooled is None:
            pooled = self._local.pooled = _PooledConnection()
            self._pooled_connections.append(pooled)
        return pooled

    def _run(self, work: Callable[[Connection], T], write: bool) -> T:
        pooled = self._pooled_connection()
        with pooled.lock:
            if pooled.connection is None:
                pooled.connection = self._engine.connect().execution_options(**{self._write_option: write})
            return self._transact(pooled.connection, work, write)

    @staticmethod
    def _transact(connection: Connection, work: Callable[[Connection], T], write: bool) -> T:
        try:
            with connection.begin() as transaction:
                result = work(connection)
                if not write:
                    transaction.rollback()
                return result
        except OperationalError as error:
            if "disk is full" in str(error.orig):
                raise Unavailable("The disk of the database is full.") from error
            raise

    async def read(self, work: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._run, work, False)

    async def write(self, work: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._run, work, True)

    async def rest(self) -> None:
        """Closes idle connections with their caches; each is reopened when needed."""
        await asyncio.get_running_loop().run_in_executor(self._readers, self._rest)

    def _rest(self) -> None:
        for pooled in list(self._pooled_connections):
            if pooled.lock.acquire(blocking=False):
                try:
                    pooled.close()
                finally:
                    pooled.lock.release()

    def close(self) -> None:
        """Waits for running transactions, then closes every connection."""
        self._writer.shutdown()
        self._readers.shutdown()
        for pooled in self._pooled_connections:
            pooled.close()
        self._pooled_connections.clear()
        self._engine.dispose()


class _PooledConnection:
    """The connection of one thread, None while closed. The lock guards its use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: Connection | None = None

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
