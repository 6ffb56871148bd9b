"""Backup and restoration of a database of RESTORE_SESSIONS sessions, 1,000,000 unless that is set.

The figure is the restoration, from `mgr restore` to a database that a manager can use.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection

from ai.backend.infra.database import Database
from ai.backend.infra.database.migrate import upgrade
from ai.backend.manager.backup.archive import Passphrase
from ai.backend.manager.backup.service import Backups, KeyPaths
from ai.backend.manager.backup.sql_postgres import PostgresCopier
from ai.backend.manager.backup.sql_sqlite import SqliteCopier
from ai.backend.manager.composition.stores import Stores
from ai.backend.manager.db import MIGRATIONS, SCHEMA_HEAD
from ai.backend.manager.sessions.tables import kernels, sessions
from bench.figures import Figure, benchmark
from bench.history import copy_rows, finished
from tests.contract.store.builders import make_agent
from tests.support.postgres import PostgresServer, why_not

SESSIONS = int(os.environ.get("RESTORE_SESSIONS", "1000000"))
MAX_RESTORE_S = 180.0
_SECRET = Passphrase("a passphrase of a benchmark")


async def _fill(url: str) -> None:
    database = Database(url, busy_timeout_s=600)
    await upgrade(database, MIGRATIONS, head=SCHEMA_HEAD)
    stores = Stores.sql(database)
    await stores.agents.put_agent(make_agent())
    template = await finished(stores)

    def copy(connection: Connection) -> None:
        for table in (sessions, kernels):
            copy_rows(connection, table, str(template.id), SESSIONS)

    await database.run_write(copy)
    await database.close()


async def _measure(source_url: str, target_url: str, folder: Path) -> tuple[float, float, int]:
    """Returns the seconds of a backup and of its restoration, and the bytes of the file."""
    await _fill(source_url)
    file, places = folder / "backup", KeyPaths(files={}, agent_keys=folder / "agents")
    seconds = []
    for url in (source_url, target_url):
        database = Database(url, busy_timeout_s=600)
        copier = PostgresCopier(database) if database.is_shared else SqliteCopier(database, folder)
        backups = Backups(database=copier, config=None, keys=places)
        started = time.perf_counter()
        if url == source_url:
            await backups.back_up(file, _SECRET, version="0", now=datetime.now(UTC), settings="")
        else:
            await backups.restore(file, _SECRET, revisions=[SCHEMA_HEAD], with_database=True, report=lambda line: None)
        seconds.append(time.perf_counter() - started)
        await database.close()
    size = file.stat().st_size
    file.unlink()
    return seconds[0], seconds[1], size


@benchmark("operations-restore", "backup and restoration of a database of RESTORE_SESSIONS (1,000,000) sessions")
def restoration() -> Sequence[Figure]:
    figures: list[Figure] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "new").mkdir()
        urls = {"sqlite": (f"sqlite:///{folder / 'manager.db'}", f"sqlite:///{folder / 'new/manager.db'}")}
        if why_not() is None:
            server = PostgresServer(Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))))
            server.make()
            server.start()
            stack.callback(server.stop)
            urls["postgresql"] = (server.url(server.create()), server.url(server.create()))
        for kind, (source, target) in urls.items():
            backup_s, restore_s, size = asyncio.run(_measure(source, target, folder))
            sys.stdout.write(f"{kind:12} backup {backup_s:7.1f} s, restoration {restore_s:7.1f} s, {size >> 20} MiB\n")
            figures.append(
                Figure(
                    name=f"operations restore {kind}",
                    value=restore_s,
                    unit="s",
                    target=f"<= {MAX_RESTORE_S:.0f}",
                    holds=restore_s <= MAX_RESTORE_S,
                    detail={"backup_s": backup_s, "sessions": SESSIONS, "file_mib": size / (1 << 20)},
                )
            )
    return figures
