"""The migrations of a PostgreSQL while others read and write.

It has MIGRATED_SESSIONS sessions, 1,000,000 unless that is set. The figure is the longest time for which a read or a
write of a session waited.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import Boolean, Connection, Float, Integer, MetaData, Table, text

from ai.backend.infra.database import Database
from ai.backend.infra.database.migrate import upgrade
from ai.backend.infra.loop import cancel_all
from ai.backend.manager.db import MIGRATIONS
from bench.figures import Figure, benchmark
from tests.support.postgres import PostgresServer

SESSIONS = int(os.environ.get("MIGRATED_SESSIONS", "1000000"))
MAX_WAIT_S = 1.0
_PROBE_S = 0.01
_ID = "lpad(to_hex(n), 8, '0') || '-0000-4000-8000-000000000000'"
_ONE = "00000001-0000-4000-8000-000000000000"
_READ = f"SELECT status FROM sessions WHERE id = '{_ONE}'"
_WRITE = f"UPDATE sessions SET status = status WHERE id = '{_ONE}'"


def _value(name: str, kind: Any) -> str:
    """Returns an SQL value for a column of its kind, of row ``n``."""
    if name in ("id", "session_id"):
        return "n" if isinstance(kind, Integer) else _ID
    if isinstance(kind, Boolean):
        return "false"
    if isinstance(kind, Integer | Float):
        return "1"
    if "TIME" in str(kind):
        return "now() - n * interval '1 second'"
    return {"name": "'job-' || (n % 1000)", "status": "'TERMINATED'"}.get(name, "'x'")


def _fill(connection: Connection) -> None:
    """Writes rows without regard to their references, which no migration reads."""
    connection.execute(text("SET LOCAL session_replication_role = replica"))
    for name in ("sessions", "kernels", "session_callbacks"):
        table = Table(name, MetaData(), autoload_with=connection)
        columns = [column for column in table.c if not column.nullable]
        names = ", ".join(f'"{column.name}"' for column in columns)
        values = ", ".join(_value(column.name, column.type) for column in columns)
        connection.execute(text(f"INSERT INTO {name} ({names}) SELECT {values} FROM generate_series(1, {SESSIONS}) n"))


async def _probe(url: str, statement: str, waits: list[float]) -> None:
    """Repeats a statement, and notes how long each took."""
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        while True:
            started = time.perf_counter()
            await connection.execute(statement)
            waits.append(time.perf_counter() - started)
            await asyncio.sleep(_PROBE_S)
    finally:
        await connection.close()


async def _measure(url: str, folder: Path) -> tuple[float, dict[str, list[float]]]:
    """Returns the seconds of the migrations, and how long probes waited beside them."""
    (folder / "versions").mkdir()
    shutil.copy(MIGRATIONS / "versions/0001_create_tables.py", folder / "versions")
    database = Database(url, busy_timeout_s=600)
    await upgrade(database, folder)
    await database.run_write(_fill)
    await database.run_online(lambda connection: connection.execute(text("VACUUM ANALYZE")))
    waits: dict[str, list[float]] = {"read": [], "write": []}
    probes = [
        asyncio.create_task(_probe(url, statement, waits[name]))
        for name, statement in (("read", _READ), ("write", _WRITE))
    ]
    await asyncio.sleep(1)
    started = time.perf_counter()
    await upgrade(database, MIGRATIONS)
    seconds = time.perf_counter() - started
    await asyncio.sleep(0.5)
    await cancel_all(*probes)
    await database.close()
    return seconds, waits


@benchmark("operations-migrations", f"how long requests wait while {SESSIONS:,} sessions are migrated on PostgreSQL")
def migrations() -> Sequence[Figure]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = PostgresServer(Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))))
        server.make()
        server.start()
        stack.callback(server.stop)
        seconds, waits = asyncio.run(_measure(server.url(server.create()), folder))
    value = max(max(times) for times in waits.values())
    sys.stdout.write(f"migrated in {seconds:.1f} s\n")
    return [
        Figure(
            name="operations migrations",
            value=value,
            unit="s",
            target=f"<= {MAX_WAIT_S:g}, the longest wait",
            holds=value <= MAX_WAIT_S,
            detail={f"{name}_max_s": max(times) for name, times in waits.items()}
            | {"migrations_s": seconds, "sessions": SESSIONS, "probes": sum(map(len, waits.values()))},
        )
    ]
