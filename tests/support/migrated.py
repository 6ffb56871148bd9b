"""Databases with the manager's schema. The migrations take longer than most tests, so they run once."""

from __future__ import annotations

import asyncio
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from ai.backend.infra.database import Database
from ai.backend.infra.database.migrate import upgrade
from ai.backend.manager.db import MIGRATIONS, SCHEMA_HEAD
from tests.support.statements import share_statements


async def _migrate(path: Path) -> None:
    database = Database(f"sqlite:///{path}")
    try:
        await upgrade(database, MIGRATIONS, head=SCHEMA_HEAD)
    finally:
        await database.close()


@cache
def _template() -> bytes:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as elsewhere:  # a loop may be running here
        path = Path(folder, "template.db")
        elsewhere.submit(asyncio.run, _migrate(path)).result()
        assert [found.name for found in Path(folder).iterdir()] == [path.name], "the journal was not written back"
        return path.read_bytes()


def migrated(path: Path) -> Path:
    """``path``, where there is now an empty database of the newest schema, unless there was one already."""
    share_statements()
    if not path.exists():
        path.write_bytes(_template())
    return path
