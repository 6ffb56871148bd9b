"""Copies PostgreSQL databases by pg_dump and pg_restore."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import IO

from sqlalchemy import Connection, text

from ai.backend.common.errors import Conflict, InvalidInput, Unavailable
from ai.backend.infra.database import Database, current_revision
from ai.backend.infra.database.programs import connection_environment, connection_options, find_program
from ai.backend.manager.backup.sql import raise_waiting_attempts
from ai.backend.manager.backup.store import DatabaseKind

_CHUNK_BYTES = 1 << 20
_MAX_ERROR_CHARACTERS = 2000
_COUNT_TABLES = text("SELECT count(*) FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'database_writers'")
_COUNT_OTHER_CLIENTS = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND backend_type = 'client backend'"
)


class PostgresCopier:
    """Copies a database of a server: pg_dump reads one snapshot, pg_restore writes in one transaction."""

    kind: DatabaseKind = "postgresql"

    def __init__(self, database: Database) -> None:
        self._database = database
        self._url = database.location

    async def revision(self) -> str | None:
        return await current_revision(self._database)

    async def write_to(self, output: IO[bytes]) -> None:
        command = [_find_program("pg_dump"), "--format=custom", "--compress=1", "--no-owner", "--no-privileges"]
        await asyncio.to_thread(self._pipe, command, None, output)

    async def check_restore_target(self, needed_bytes: int) -> None:
        def count_contents(connection: Connection) -> tuple[int, int]:
            return connection.execute(_COUNT_TABLES).scalar_one(), connection.execute(_COUNT_OTHER_CLIENTS).scalar_one()

        table_count, other_count = await self._database.run_read(count_contents)
        if table_count:
            raise Conflict(
                f"The database {self._url.database} has {table_count} tables: a backup is restored into an empty one."
                " Create another (CREATE DATABASE ... TEMPLATE template0), and name it in the settings."
            )
        if other_count:
            raise Conflict(f"{other_count} other programs are connected to {self._url.database}: stop the managers")

    async def read_from(self, copy: IO[bytes]) -> None:
        command = [
            _find_program("pg_restore"),
            "--single-transaction",
            "--no-owner",
            "--no-privileges",
            "--exit-on-error",
        ]
        await asyncio.to_thread(self._pipe, command, copy, None)
        # Plans are bad until the server has looked at the tables, which it does minutes later by itself.
        await self._database.run_write(lambda connection: connection.execute(text("ANALYZE")))

    async def raise_attempts(self) -> int:
        return await raise_waiting_attempts(self._database)

    def _pipe(self, command: list[str], source: IO[bytes] | None, target: IO[bytes] | None) -> None:
        """Runs a program between an input and an output stream. Raises Unavailable with its last words if it fails."""
        with tempfile.TemporaryFile() as messages:
            process = subprocess.Popen(
                [*command, *connection_options(self._url), "--no-password"],
                stdin=subprocess.PIPE if source is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE if target is not None else subprocess.DEVNULL,
                stderr=messages,
                env=connection_environment(self._url),
            )
            with process:
                try:
                    if source is not None and process.stdin is not None:
                        _feed_program(source, process.stdin)
                    if target is not None and process.stdout is not None:
                        shutil.copyfileobj(process.stdout, target, _CHUNK_BYTES)
                except BaseException:
                    process.kill()
                    raise
            if process.returncode:
                messages.seek(0)
                message = messages.read().decode(errors="replace").strip()[-_MAX_ERROR_CHARACTERS:]
                raise Unavailable(f"{Path(command[0]).name} failed: {message}")


def _feed_program(source: IO[bytes], stdin: IO[bytes]) -> None:
    """Copies a stream to a program; stops without an error if the program ends, whose exit code is checked later."""
    try:
        while chunk := source.read(_CHUNK_BYTES):
            stdin.write(chunk)
        stdin.close()
    except BrokenPipeError:
        return


def _find_program(name: str) -> str:
    program_path = find_program(name)
    if program_path is None:
        raise InvalidInput(f"{name} is not installed (Debian: postgresql-client)")
    return program_path
