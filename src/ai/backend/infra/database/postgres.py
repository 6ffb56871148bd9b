"""Runs transactions on PostgreSQL. Writes are serialized over the whole installation, and many writes share one commit.

Each writer holds one advisory lock, which corresponds to SQLite's ``BEGIN IMMEDIATE`` for all processes of all hosts.
Simultaneous transactions of this process share a commit; each has a savepoint of its own and fails alone. Each commit
sets the number of its batch in the row of this process, so that a commit whose reply was lost is neither repeated nor
taken for done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from ai.backend.common.errors import BackendError, InvalidInput, Unavailable
from ai.backend.infra.database.batching import DISK_FULL, BatchWriter
from ai.backend.infra.retry import Backoff
from ai.backend.plugin.crash_points import crash_point

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")
Work = Callable[[Connection], Any]

_LOCK_SQL = text(f"SELECT pg_advisory_xact_lock({0x6261_636B_656E_6461})")
"""Waits for every other writer of the database."""
_CREATE_WRITERS_TABLE = text(
    "CREATE TABLE IF NOT EXISTS database_writers (id text PRIMARY KEY, batch bigint NOT NULL, at timestamptz NOT NULL)"
)
_DELETE_OLD_WRITERS = text("DELETE FROM database_writers WHERE at < now() - interval '1 day'")
_LOCK_AND_MARK = text(
    f"WITH writer AS MATERIALIZED ({_LOCK_SQL.text}) INSERT INTO database_writers SELECT :id, :batch, now() FROM writer"
    " ON CONFLICT (id) DO UPDATE SET batch = excluded.batch, at = excluded.at"
)
_SELECT_LAST_BATCH = text("SELECT batch FROM database_writers WHERE id = :id")
_READ_OPTIONS = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
_MAX_BATCH_WRITES = 200
_RETRY_S, _RETRY_MAX_S, _RETRY_JITTER = 0.05, 1.0, 0.5
_BAD_DATA_STATES = ("22001", "22003", "22021", "22P05", "22007", "22008")
_RETRYABLE_STATES = ("08", "57P", "53", "40001", "40P01")
"""SQLSTATE classes of retryable errors: connections, shutdowns and starts, resources, conflicts."""
_DISK_FULL_STATE = "53100"
"""Waiting makes no room: the caller is told at once, as by SQLite, and other transactions of the group go on."""


def _is_retryable(error: BaseException) -> bool:
    """Returns True if a retry may succeed: the server is away or starting, or it aborted the transaction.

    It chose the transaction as a victim of a conflict.
    """
    if isinstance(error, DBAPIError):
        if _sql_state(error) == _DISK_FULL_STATE:
            return False
        is_away = error.connection_invalidated or _sql_state(error).startswith(_RETRYABLE_STATES)
        return is_away or _is_retryable(_driver_error(error))
    sql_state = getattr(error, "sqlstate", None)
    if isinstance(sql_state, str):
        return sql_state.startswith(_RETRYABLE_STATES)
    driver_errors = {"InterfaceError", "ConnectionDoesNotExistError"}
    return isinstance(error, OSError | TimeoutError | ConnectionError) or type(error).__name__ in driver_errors


def _driver_error(error: DBAPIError) -> BaseException:
    return (error.orig.__cause__ if error.orig is not None else None) or ValueError()


def _sql_state(error: DBAPIError) -> str:
    return str(getattr(error.orig, "sqlstate", None) or getattr(_driver_error(error), "sqlstate", None) or "")


def _translate_error(error: Exception) -> Exception:
    """Translates an error of the driver."""
    if isinstance(error, BackendError):
        return error
    if isinstance(error, DBAPIError) and (
        _sql_state(error).startswith(_BAD_DATA_STATES) or type(_driver_error(error)).__name__ == "DataError"
    ):
        return InvalidInput("A value is too long or too large, or holds a character that cannot be kept.")
    if isinstance(error, DBAPIError) and _sql_state(error) == _DISK_FULL_STATE:
        return Unavailable(DISK_FULL)
    return Unavailable("The database does not answer.") if _is_retryable(error) else error


class PostgresTransactions:
    """Runs transactions on one PostgreSQL database, which may be unavailable for ``patience_s`` seconds."""

    def __init__(self, engine: AsyncEngine, *, patience_s: float) -> None:
        self._engine = engine
        self._patience_s = patience_s
        self._writer_id = str(uuid4())
        self._batch = 0
        self._has_table = False
        self._writes = BatchWriter(self._write_batch, max_values=_MAX_BATCH_WRITES)

    async def read(self, function: Callable[[Connection], T]) -> T:
        async def read_on_connection() -> T:
            async with self._engine.connect() as connection:
                await connection.execution_options(**_READ_OPTIONS)
                return await connection.run_sync(function)

        return await self._with_retries(read_on_connection)

    async def write(self, function: Callable[[Connection], T]) -> T:
        result: T = await self._writes.put(function)
        return result

    async def online(self, function: Callable[[Connection], T]) -> T:
        """Runs ``function`` on a connection without a transaction and without the lock of writers."""
        async with self._engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            return await connection.run_sync(function)

    async def vacuum(self) -> None:
        await self.online(lambda connection: connection.execute(text("VACUUM FULL")))

    async def close_idle(self) -> None:
        """Does nothing, because the connections hold no caches."""

    async def close(self) -> None:
        """Waits for running transactions, then closes every connection."""
        await self._writes.close()
        await self._engine.dispose()

    async def _with_retries(self, function: Callable[[], Awaitable[T]]) -> T:
        """Repeats ``function`` while it fails with a retryable error. Raises Unavailable after ``patience_s``."""
        deadline = asyncio.get_running_loop().time() + self._patience_s
        backoff = Backoff(_RETRY_S, _RETRY_MAX_S, jitter=_RETRY_JITTER)
        while True:
            pause_s = backoff.next_s()
            try:
                return await function()
            except Exception as error:
                if not _is_retryable(error) or asyncio.get_running_loop().time() + pause_s > deadline:
                    raise _translate_error(error) from error
            await asyncio.sleep(pause_s)

    async def _write_batch(self, functions: Sequence[Work]) -> Sequence[Any]:
        self._batch += 1
        return await self._with_retries(_Batch(self, functions, self._batch).commit)

    async def commit(self, run_batch: Work, batch_number: int, before_commit: Callable[[], bool]) -> None:
        """Runs a batch as the only writer and commits it, unless ``before_commit`` returns False."""

        def lock_and_run(connection: Connection) -> None:
            if not self._has_table:
                connection.execute(_LOCK_SQL)
                connection.execute(_CREATE_WRITERS_TABLE)
                connection.execute(_DELETE_OLD_WRITERS)
            connection.execute(_LOCK_AND_MARK, {"id": self._writer_id, "batch": batch_number})
            run_batch(connection)

        async with self._engine.connect() as connection, connection.begin() as transaction:
            await connection.run_sync(lock_and_run)
            if before_commit():
                await transaction.commit()
                self._has_table = True
            else:
                await transaction.rollback()

    async def has_committed(self, batch_number: int) -> bool:
        """Returns True if the batch of this number was committed last. Waits while its commit is under way."""
        async with self._engine.begin() as connection:
            await connection.execute(_LOCK_SQL)
            await connection.execute(_CREATE_WRITERS_TABLE)
            last_batch = await connection.execute(_SELECT_LAST_BATCH, {"id": self._writer_id})
            return last_batch.scalar_one_or_none() == batch_number


@dataclass(slots=True)
class _Batch:
    """Collects transactions that share a commit. ``commit`` may be called again after it failed."""

    database: PostgresTransactions
    works: Sequence[Work]
    number: int
    outcomes: Sequence[Any] = ()
    is_in_doubt: bool = False

    async def commit(self) -> Sequence[Any]:
        if not (self.is_in_doubt and await self.database.has_committed(self.number)):
            self.is_in_doubt = False
            await self.database.commit(self._run_works, self.number, self._before_commit)
        return self.outcomes

    def _run_works(self, connection: Connection) -> None:
        self.outcomes = [self._run_in_savepoint(connection, function) for function in self.works]

    def _before_commit(self) -> bool:
        """Returns True if a transaction of the batch has succeeded, so that there is something to commit."""
        if all(isinstance(outcome, Exception) for outcome in self.outcomes):
            return False
        crash_point("database-before-commit")
        self.is_in_doubt = True  # from here on the reply may be lost
        return True

    def _run_in_savepoint(self, connection: Connection, function: Work) -> Any:
        try:
            if len(self.works) == 1:  # its failure is the failure of the whole
                return function(connection)
            with connection.begin_nested():
                return function(connection)
        except Exception as error:
            if _is_retryable(error):
                raise  # the server failed, not this transaction
            return _translate_error(error)
