"""Manages the agent's data directory and the SQLite database of its records."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
import sqlite3
from pathlib import Path
from typing import IO, Any

from ai.backend.common.errors import Conflict
from ai.backend.infra.files import write_atomically

log = logging.getLogger(__name__)
_SECRET_BYTES = 32
_CACHE_KIB = 32
_PAGE_BYTES = 1024
_CACHED_STATEMENTS = 16
# A shard has a thousand of these files open, of which few are in use: together these settings keep 60 KiB for each
# where the defaults keep 260. The size of pages holds for new files.
_PRAGMAS = (
    f"page_size = {_PAGE_BYTES}",
    "journal_mode = WAL",
    "synchronous = NORMAL",
    f"cache_size = -{_CACHE_KIB}",
)
_DAMAGE_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_FILE_SUFFIXES = ("", "-wal", "-shm")  # what SQLite appends to the name of its file


class DataDirectory:
    """Locks the data directory for one agent, and stores the agent's epoch and secret in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[bytes] | None = None

    def open(self) -> None:
        """Creates and locks the directory. Raises Conflict if another agent uses it."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (self.path / "agent.lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise Conflict(f"another agent uses {self.path}") from None
        self._lock = lock

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def next_epoch(self) -> int:
        """Returns and stores the epoch of this start of the agent. It is larger than at any earlier start."""
        path = self.path / "epoch"
        try:
            previous_epoch = int(path.read_text())
        except (FileNotFoundError, ValueError):
            previous_epoch = 0
        write_atomically(path, str(previous_epoch + 1).encode())
        return previous_epoch + 1

    def secret(self) -> bytes:
        """Returns the agent's secret, which is generated at the first start."""
        path = self.path / "secret"
        try:
            secret = path.read_bytes()
        except FileNotFoundError:
            secret = b""
        if len(secret) != _SECRET_BYTES:
            secret = secrets.token_bytes(_SECRET_BYTES)
            write_atomically(path, secret)
            path.chmod(0o600)
        return secret


class RecordDatabase:
    """Stores tables of records in one SQLite file, each write in a transaction of its own. Raises OSError.

    It belongs to the thread that opens it. Values stay in the file, since most are of ended kernels
    (docs/decisions/0016).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Opens or creates the file. A file that SQLite cannot read is renamed to ``<name>.damaged``."""
        self.close()
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        try:
            self._connect()
            problem = str(self.execute("PRAGMA quick_check(1)")[0][0])
            self.execute("PRAGMA shrink_memory")  # the check has filled the cache
        except _Damaged as error:
            problem = str(error)
        if problem != "ok":
            self._rename_damaged(problem)
            self.open()

    def _connect(self) -> None:
        self._connection = sqlite3.connect(self._path, isolation_level=None, cached_statements=_CACHED_STATEMENTS)
        for setting in _PRAGMAS:
            self.execute(f"PRAGMA {setting}")

    def _rename_damaged(self, problem: str) -> None:
        self.close()
        damaged_path = self._path.with_name(self._path.name + ".damaged")
        log.error("%s cannot be read and is set aside as %s: %s", self._path, damaged_path.name, problem)
        for suffix in _FILE_SUFFIXES:
            damaged_path.with_name(damaged_path.name + suffix).unlink(missing_ok=True)
            path = self._path.with_name(self._path.name + suffix)
            if path.exists():
                path.rename(damaged_path.with_name(damaged_path.name + suffix))

    def table(self, name: str) -> RecordTable:
        """Returns the table of this name, and creates it if there is none."""
        self.execute(f"CREATE TABLE IF NOT EXISTS {name} (key TEXT PRIMARY KEY, value BLOB NOT NULL)")
        return RecordTable(self, name)

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Runs one statement in a transaction of its own, and returns its rows."""
        if self._connection is None:
            raise OSError(errno.EBADF, f"{self._path} is not open")
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise _to_os_error(error, self._path) from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class RecordTable:
    """Stores values (bytes) by keys (text). A method that raises OSError has changed nothing."""

    def __init__(self, database: RecordDatabase, name: str) -> None:
        self._database = database
        self._name = name

    def items(self) -> dict[str, bytes]:
        return {str(key): bytes(value) for key, value in self._rows("SELECT key, value FROM {} ORDER BY rowid")}

    def all_keys(self) -> list[str]:
        return [str(key) for (key,) in self._rows("SELECT key FROM {}")]

    def get(self, key: str) -> bytes | None:
        rows = self._rows("SELECT key, value FROM {} WHERE key = ?", key)
        return bytes(rows[0][1]) if rows else None

    def put(self, key: str, value: bytes) -> None:
        """Stores the newest value of a key. The same value again writes nothing."""
        self._rows(
            "INSERT INTO {} VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
            " WHERE value != excluded.value",
            key,
            value,
        )

    def delete(self, key: str) -> None:
        """Deletes a key, if it is stored."""
        self._rows("DELETE FROM {} WHERE key = ?", key)

    def delete_below(self, prefix: str) -> None:
        """Deletes every key that consists of ``prefix``, a slash and a name."""
        self._rows("DELETE FROM {} WHERE key > ? AND key < ?", prefix + "/", prefix + "0")  # 0 is what follows a slash

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return self._database.execute(statement.format(self._name), *values)


class _Damaged(OSError):
    """Raised when the file is no SQLite database, or when the database is corrupt."""


def _to_os_error(error: sqlite3.Error, path: Path) -> OSError:
    error_code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the rest of it says where
    if error_code in _DAMAGE_CODES:
        return _Damaged(errno.EIO, f"{path}: {error}")
    if error_code == sqlite3.SQLITE_FULL:
        return OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {path}")
    return OSError(errno.EIO, f"{path}: {error}")
