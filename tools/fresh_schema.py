"""Writes the statements that make an empty SQLite database without running its migrations."""

from __future__ import annotations

import asyncio
import importlib
import tempfile
from pathlib import Path

from ai.backend.infra.database import Database
from ai.backend.infra.database.fresh import script_of
from ai.backend.infra.database.migrate import VERSION_TABLE, upgrade


def sql(package: str) -> str:
    """Returns the file for the migrations of a package, such as ``ai.backend.manager.db``."""
    return asyncio.run(_migrated_script(importlib.import_module(package).MIGRATIONS))


async def _migrated_script(location: Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/fresh.db")
        try:
            await upgrade(database, location)
            return await database.run_read(lambda connection: script_of(connection, VERSION_TABLE))
        finally:
            await database.close()
