"""Write transactions of PostgreSQL: serialized over the whole installation, many in one commit.

Whoever writes holds one advisory lock, so writers see each other's work or have not begun: what ``BEGIN IMMEDIATE``
gives on SQLite, for every process of every host. Transactions that wait in this process share a commit; each has a
savepoint of its own and fails alone. A server that goes away is waited for, and a commit whose answer was lost is asked
after by its transaction id, so that nothing is done twice and nothing is taken for done that is not.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from ai.backend.common.errors import BackendError, InvalidInput, Unavailable
from ai.backend.infra.retry import Backoff
from ai.backend.plugin.crash_points import crash_point

log = logging.getLogger(__name__)
T = TypeVar("T")

WRITE_LOCK = 0x6261_636B_656E_6461
"""The advisory lock of all writers of one database."""
_LOCK = text("SELECT pg_advisory_xact_lock(:key), pg_current_xact_id()::text").bindparams(key=WRITE_LOCK)
_STATUS = text("SELECT pg_xact_status(CAST(CAST(:xid AS text) AS xid8))")
_UNKNOWN_TRANSACTION = "22023"
"""Raised for an id that the server has not assigned: it died before the assignment reached its log."""
_MOST = 200
_RETRY_S, _RETRY_MAX_S, _RETRY_JITTER = 0.05, 1.0, 0.5
_BAD_DATA = ("22001", "22003", "22021", "22P05", "22007", "22008")
_PASSING = ("08", "57P", "53", "40001", "40P01")
"""SQLSTATE classes of retryable errors: connections, shutdowns and starts, resources, conflicts."""


def lock_writers(connection: Connection) -> str:
    """Waits for every other writer, and returns the id of this transaction."""
    xid: str = connection.execute(_LOCK).one()[1]
    return xid


def may_pass(error: BaseException) -> bool:
    """Returns True if the transaction may succeed when retried: the server is away, starting, or chose it as a
    victim."""
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or _state(error).startswith(_PASSING) or may_pass(_cause(error))
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str):
        return state.startswith(_PASSING)
    return isinstance(error, OSError | TimeoutError | ConnectionError) or type(error).__name__ in {
        "InterfaceError",
        "ConnectionDoesNotExistError",
    }


def _cause(error: DBAPIError) -> BaseException:
    return (error.orig.__cause__ if error.orig is not None else None) or ValueError()


def _state(error: DBAPIError) -> str:
    return str(getattr(error.orig, "sqlstate", None) or getattr(_cause(error), "sqlstate", None) or "")


def translate_error(error: BaseException) -> BaseException:
    """Translates an error of the driver."""
    if isinstance(error, BackendError):
        return error
    if isinstance(error, DBAPIError) and (
        _state(error).startswith(_BAD_DATA) or type(_cause(error)).__name__ == "DataError"
    ):
        return InvalidInput("A value is too long or too large, or holds a character that cannot be kept.")
    if may_pass(error):
        return Unavailable("The database does not answer.")
    return error


async def with_retries(work: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """Runs ``work``, with retries while it fails with a retryable error.

    Raises:
        Unavailable: for longer than ``patience_s`` seconds.
    """
    deadline = asyncio.get_running_loop().time() + patience_s
    backoff = Backoff(_RETRY_S, _RETRY_MAX_S, jitter=_RETRY_JITTER)
    while True:
        pause = backoff.next_s()
        try:
            return await work()
        except Exception as error:
            if not may_pass(error) or asyncio.get_running_loop().time() + pause > deadline:
                raise translate_error(error) from error
        await asyncio.sleep(pause)


@dataclass(slots=True, eq=False)
class _PendingWork:
    work: Callable[[Connection], Any]
    done: asyncio.Future[Any]


class GroupCommit:
    """Commits the write transactions of this process in groups.

    Args:
        engine: of PostgreSQL, READ COMMITTED: a statement behind the lock sees whatever was committed before it.
        patience_s: how long a server may be away before callers are told.
    """

    def __init__(self, engine: AsyncEngine, *, patience_s: float) -> None:
        self._engine = engine
        self._patience_s = patience_s
        self._waiting: deque[_PendingWork] = deque()
        self._worker: asyncio.Task[None] | None = None

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Runs and commits ``work``, or rolls it back when it raises. It may run again as long as nothing is committed.
        If the caller is cancelled, it still commits."""
        wanted = _PendingWork(work, asyncio.get_running_loop().create_future())
        self._waiting.append(wanted)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work(), name="database-writer")
        result: T = await wanted.done
        return result

    async def close(self) -> None:
        """Waits for running transactions."""
        if self._worker is not None:
            await asyncio.gather(self._worker, return_exceptions=True)

    async def _work(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_MOST, len(self._waiting)))]
            try:
                outcomes = await with_retries(_Batch(self._engine, batch).commit, self._patience_s)
            except Exception as error:  # noqa: BLE001  # each caller learns of it
                outcomes = [(None, error)] * len(batch)
            for wanted, (result, raised) in zip(batch, outcomes, strict=True):
                if wanted.done.cancelled():
                    continue
                if raised is None:
                    wanted.done.set_result(result)
                else:
                    wanted.done.set_exception(raised)


Outcome = tuple[Any, Exception | None]


class _Batch:
    """Transactions that share a commit. ``commit`` may be called again after it failed."""

    def __init__(self, engine: AsyncEngine, batch: list[_PendingWork]) -> None:
        self._engine = engine
        self._batch = batch
        self._xid: str | None = None
        self._outcomes: list[Outcome] = []

    async def commit(self) -> list[Outcome]:
        if self._xid is not None and await is_committed(self._engine, self._xid):
            return self._outcomes
        self._xid = None
        async with self._engine.connect() as connection:
            async with connection.begin() as transaction:
                xid = await connection.run_sync(self._run)
                if all(raised is not None for _, raised in self._outcomes):
                    await transaction.rollback()
                    return self._outcomes
                crash_point("database-before-commit")
                self._xid = xid  # from here on the answer may be lost
            return self._outcomes

    def _run(self, connection: Connection) -> str:
        xid = lock_writers(connection)
        self._outcomes = [self._one(connection, wanted) for wanted in self._batch]
        return xid

    def _one(self, connection: Connection, wanted: _PendingWork) -> Outcome:
        try:
            if len(self._batch) == 1:  # its failure is the failure of the whole
                return wanted.work(connection), None
            with connection.begin_nested():
                return wanted.work(connection), None
        except Exception as error:
            if may_pass(error):
                raise  # it says nothing about this one
            raised = translate_error(error)
            return None, raised if isinstance(raised, Exception) else error


async def is_committed(engine: AsyncEngine, xid: str) -> bool:
    """Return whether a transaction was committed, once it is no longer in progress."""
    while True:
        try:
            async with engine.connect() as connection:
                status = (await connection.execute(_STATUS, {"xid": xid})).scalar_one()
        except DBAPIError as error:
            if _state(error) == _UNKNOWN_TRANSACTION:
                return False
            raise
        if status != "in progress":
            return bool(status == "committed")
        await asyncio.sleep(0.05)
