"""A PostgreSQL server of our own, and databases in it that are copies of a migrated one."""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import signal
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count
from pathlib import Path

from tests.support.cluster import wait_until

_OPTIONS = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "16MB", "max_connections": "60"}


def program(name: str) -> str | None:
    """Where a program of PostgreSQL is: on the path, or where Debian puts it."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(installed[-1]) if installed else None)


def why_not() -> str | None:
    return None if program("postgres") else "binary: postgres is not installed (package postgresql)"


def _nobody() -> dict[str, object]:
    """The server refuses to run as root."""
    return {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}


class PostgresServer:
    """Listens on a socket in ``folder`` and, with a port, on 127.0.0.1. ``start``, ``kill``, ``start`` again ..."""

    def __init__(self, folder: Path, *, port: int | None = None, durable: bool = False) -> None:
        self.folder = folder
        self.port = port
        self._options = {} if durable else dict(_OPTIONS)
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count(1)

    def _run(self, name: str, *arguments: str) -> list[str]:
        found = program(name)
        assert found is not None, why_not()
        return [found, *arguments]

    def make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(self.folder, 65534, 65534)
        command = self._run("initdb", "-D", str(self.folder / "data"), "-U", "postgres", "-A", "trust")
        options = ["--no-sync", "--no-instructions", "--locale=C", "-E", "UTF8"]
        subprocess.run([*command, *options], check=True, capture_output=True, cwd="/", **_nobody())  # type: ignore[call-overload]  # the user of the server

    def start(self) -> None:
        listen = ["-h", "127.0.0.1", "-p", str(self.port)] if self.port else ["-h", ""]
        options = [part for name, value in self._options.items() for part in ("-c", f"{name}={value}")]
        command = self._run("postgres", "-D", str(self.folder / "data"), "-k", str(self.folder), *listen, *options)
        with (self.folder / "log").open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, cwd="/", **_nobody())  # type: ignore[call-overload]  # as above
        wait_until(self._answers, what=f"PostgreSQL\n{(self.folder / 'log').read_text()}")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        where = ["-h", str(self.folder), "-p", str(self.port or 5432)]
        return subprocess.run(self._run("pg_isready", "-q", *where), check=False).returncode == 0

    def kill(self) -> None:
        """SIGKILL to the postmaster and, so that the next start need not wait for them, to its children."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for pid in (self._process.pid, *map(int, children)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)  # its files are not needed any more
            self._process.wait(30)

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}&port={self.port or 5432}"

    def create(self, *, template: str = "template0", name: str | None = None) -> str:
        """Make a database; its name."""
        name = name or f"db{next(self._numbers)}"
        self.sql("postgres", f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return name

    def drop(self, name: str) -> None:
        self.sql("postgres", f'DROP DATABASE "{name}" WITH (FORCE)')

    def sql(self, database: str, *statements: str) -> None:
        async def work() -> None:
            import asyncpg

            connection = await asyncpg.connect(self.url(database))
            try:
                for statement in statements:
                    await connection.execute(statement)
            finally:
                await connection.close()

        with ThreadPoolExecutor(1) as elsewhere:  # a loop may be running here
            elsewhere.submit(asyncio.run, work()).result()


async def _migrate(url: str) -> None:
    from ai.backend.infra.database import Database
    from ai.backend.infra.database.migrate import upgrade
    from ai.backend.manager.db import MIGRATIONS, SCHEMA_HEAD

    database = Database(url)
    try:
        await upgrade(database, MIGRATIONS, head=SCHEMA_HEAD)
    finally:
        await database.close()


@cache
def shared_server() -> PostgresServer:
    """One for this process, until it ends."""
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    server = PostgresServer(folder)
    server.make()
    server.start()

    def end() -> None:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return server


@cache
def migrated_template() -> str:
    """The name of a database of the newest schema."""
    server = shared_server()
    name = server.create(name="migrated")
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(asyncio.run, _migrate(server.url(name))).result()
    return name


def emptied(server: PostgresServer, name: str) -> str:
    """The same database with every row of ours gone; quicker than another one."""
    tables = (
        "SELECT string_agg(format('%I', tablename), ', ') FROM pg_tables"
        " WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
    )
    server.sql(name, f"DO $$ BEGIN EXECUTE 'TRUNCATE ' || ({tables}) || ' RESTART IDENTITY CASCADE'; END $$")
    return name
