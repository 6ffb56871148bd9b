"""Copies SQLite databases by the backup interface of SQLite."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import IO

from ai.backend.common.errors import Conflict, InvalidInput, Unavailable
from ai.backend.infra.database import Database, current_revision
from ai.backend.manager.backup.sql import raise_waiting_attempts
from ai.backend.manager.backup.store import DatabaseKind

_CHUNK_BYTES = 1 << 20
_BUSY_TIMEOUT_S = 30.0


class SqliteCopier:
    """Copies the database of a manager that may run. ``workspace`` takes a temporary copy of the same size."""

    kind: DatabaseKind = "sqlite"

    def __init__(self, database: Database, workspace: Path) -> None:
        self._database = database
        self._path = Path(str(database.location.database))
        self._workspace = workspace

    async def revision(self) -> str | None:
        return await current_revision(self._database) if self._path.is_file() else None

    async def write_to(self, output: IO[bytes]) -> None:
        await asyncio.to_thread(self._write_to, output)

    def _write_to(self, output: IO[bytes]) -> None:
        with tempfile.NamedTemporaryFile(dir=self._workspace, prefix=".backup-") as copy:
            try:
                with (
                    closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S)) as source,
                    closing(sqlite3.connect(copy.name)) as target,
                ):
                    source.backup(target)  # in one step: one read transaction, which delays no writer
                    target.execute("PRAGMA journal_mode = DELETE")
            except sqlite3.Error as e:
                raise Unavailable(f"the database {self._path} cannot be copied: {e}") from None
            with Path(copy.name).open("rb") as stream:
                shutil.copyfileobj(stream, output, _CHUNK_BYTES)

    async def check_restore_target(self, needed_bytes: int) -> None:
        # SQLite would apply a log or roll back a journal that lies beside the restored file.
        for suffix in ("", "-wal", "-journal"):
            path = self._path.with_name(f"{self._path.name}{suffix}")
            if path.exists():
                raise Conflict(f"{path} exists: a backup is restored where no database is; stop the manager, move it")
        free_bytes = shutil.disk_usage(self._path.parent).free
        if free_bytes < needed_bytes:
            message = f"{self._path.parent} has {free_bytes >> 20} MiB free, {needed_bytes >> 20} MiB are needed"
            raise InvalidInput(message)

    async def read_from(self, copy: IO[bytes]) -> None:
        await asyncio.to_thread(self._read_from, copy)

    def _read_from(self, copy: IO[bytes]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial_path = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}.restoring")
        try:
            with os.fdopen(os.open(partial_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as output:
                shutil.copyfileobj(copy, output, _CHUNK_BYTES)
                output.flush()
                os.fsync(output.fileno())
            with closing(sqlite3.connect(partial_path)) as connection:
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            os.link(partial_path, self._path)  # unlike a rename, it replaces nothing
        except FileExistsError:
            raise Conflict(f"{self._path} was made meanwhile: stop the manager or the other restoration") from None
        except sqlite3.Error as e:
            raise InvalidInput(f"the copy is no database: {e}") from None
        finally:
            partial_path.unlink(missing_ok=True)

    async def raise_attempts(self) -> int:
        return await raise_waiting_attempts(self._database)
