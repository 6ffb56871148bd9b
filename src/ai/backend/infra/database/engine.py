"""Runs read and write transactions on SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

import msgspec
from sqlalchemy import URL, Connection, Executable, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.sql.dml import UpdateBase

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.database.postgres import PostgresTransactions
from ai.backend.infra.database.prepared import Prepared
from ai.backend.infra.database.sqlite import SqliteTransactions

T = TypeVar("T")

write_fence: ContextVar[Callable[[Connection], None] | None] = ContextVar("write_fence", default=None)
"""A context's check before each ``run_write``; an exception rolls the transaction back."""


class _Transactions(Protocol):
    """Runs transactions on one kind of database."""

    async def read(self, function: Callable[[Connection], T]) -> T: ...
    async def write(self, function: Callable[[Connection], T]) -> T: ...
    async def online(self, function: Callable[[Connection], T]) -> T: ...
    async def vacuum(self) -> None: ...
    async def close_idle(self) -> None: ...
    async def close(self) -> None: ...


class Pool(msgspec.Struct, frozen=True):
    """Describes the pool of connections to PostgreSQL.

    Attributes:
        size: the most that stay open.
        max_overflow: the most besides those while all are in use; -1 is any number.
        recycle_s: the seconds after which one is replaced; -1 is never.
        tries_connections: whether one is tried before each use.
    """

    size: int = 5
    max_overflow: int = 5
    recycle_s: float = -1
    tries_connections: bool = False


class Database:
    """Runs read and write transactions on one database, which is SQLite or PostgreSQL.

    Raises InvalidInput if the database is of an unknown kind, or its extra is not installed.

    ``url`` is an SQLAlchemy URL (``sqlite:///...`` or ``postgresql://...``) with any driver. ``busy_timeout_s`` is how
    long a SQLite write waits for another process, and a transaction for a PostgreSQL that is unavailable.
    ``ballast_bytes`` are held on SQLite's disk for writes when it is full.
    """

    def __init__(
        self, url: str, *, pool: Pool | None = None, busy_timeout_s: float = 10.0, ballast_bytes: int = 0
    ) -> None:
        self.url = url
        self.location = _parse_url(url)
        self._transactions = _open_transactions(self.location, pool or Pool(), busy_timeout_s, ballast_bytes)

    @property
    def is_shared(self) -> bool:
        """Returns True if other hosts may use the database at the same time."""
        return isinstance(self._transactions, PostgresTransactions)

    async def run_read(self, function: Callable[[Connection], T]) -> T:
        """Runs ``function(connection)`` in one read transaction; on SQLite in a thread. Raises Unavailable."""
        return await self._transactions.read(function)

    async def run_write(self, function: Callable[[Connection], T]) -> T:
        """Runs ``function(connection)`` in one write transaction and commits, or rolls back when it raises.

        No other write of this process runs in between; it also commits if the caller is cancelled. ``function`` may run
        again while nothing is committed. Raises Unavailable if the database is away or its disk is full, InvalidInput
        for an invalid value.
        """
        check_fence = write_fence.get()
        if check_fence is None:
            return await self._transactions.write(function)

        def work_with_fence(connection: Connection) -> T:
            check_fence(connection)
            return function(connection)

        return await self._transactions.write(work_with_fence)

    async def run_online(self, function: Callable[[Connection], T]) -> T:
        """Runs ``function(connection)`` outside of transactions, without blocking writers.

        On SQLite, it works as :meth:`run_write`.
        """
        return await self._transactions.online(function)

    async def vacuum(self) -> None:
        """Returns the space of deleted rows to the disk. The database is locked meanwhile."""
        await self._transactions.vacuum()

    async def fetch(self, query: Executable | Prepared, parameters: Mapping[str, Any] | None = None) -> Sequence[Any]:
        """Returns the rows of a query. The query has a read transaction of its own."""
        if isinstance(query, Prepared):
            return await self.run_read(lambda connection: query.all(connection, parameters))
        return await self.run_read(lambda connection: connection.execute(query, parameters).all())

    async def execute(self, statement: UpdateBase, parameters: Any = None) -> int:
        """Executes a statement in a write transaction of its own, and returns the number of changed rows."""
        return await self.run_write(lambda connection: connection.execute(statement, parameters).rowcount)

    async def close_idle(self) -> None:
        """Closes idle connections. They are reopened when needed."""
        await self._transactions.close_idle()

    async def close(self) -> None:
        """Waits for running transactions, then closes every connection."""
        await self._transactions.close()

    def __repr__(self) -> str:
        return f"Database({self.location.render_as_string(hide_password=True)!r})"


def _parse_url(url: str) -> URL:
    scheme = url.partition("://")[0]
    try:
        return make_url(url)
    except ArgumentError:
        raise InvalidInput(f"no database is named by {scheme}://...", data={"url": "malformed"}) from None


def _open_transactions(url: URL, pool: Pool, busy_timeout_s: float, ballast_bytes: int) -> _Transactions:
    database_kind = url.get_backend_name()
    if database_kind == "sqlite":
        return SqliteTransactions(url, busy_timeout_s=busy_timeout_s, ballast_bytes=ballast_bytes)
    if database_kind not in ("postgresql", "postgres"):
        raise InvalidInput(f"no database is named by {database_kind}://...", data={"url": "malformed"})
    # It loads the object mapper, 6 MiB that SQLite does not need.
    from sqlalchemy.ext.asyncio import create_async_engine

    try:
        engine = create_async_engine(
            url.set(drivername="postgresql+asyncpg"),
            pool_size=pool.size,
            max_overflow=pool.max_overflow,
            pool_recycle=pool.recycle_s,
            pool_pre_ping=pool.tries_connections,
        )
    except ModuleNotFoundError as e:
        raise InvalidInput(f"the database {database_kind} needs {e.name}: pip install 'backendai[postgres]'") from None
    return PostgresTransactions(engine, patience_s=busy_timeout_s)
