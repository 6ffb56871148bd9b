"""Defines the SQL table of resource presets and stores presets in SQL."""

from __future__ import annotations

from sqlalchemy import Column, String, Table, delete, select

from ai.backend.infra.database import Database, QuantityMap, Whole
from ai.backend.infra.database.columns import JSONTuple, required
from ai.backend.infra.database.rows import put_row, row_of
from ai.backend.manager.db import metadata
from ai.backend.manager.resources.model import ResourcePreset

presets = Table(
    "resource_presets",
    metadata,
    Column("name", String(256), primary_key=True),
    required("resource_slots", QuantityMap),
    Column("shared_memory", Whole),
    required("device_requests", JSONTuple(str), server_default="[]"),
)


class SqlPresetStore:
    """Implements :class:`ai.backend.manager.resources.presets.PresetStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def presets(self) -> list[ResourcePreset]:
        query = select(presets).order_by(presets.c.name)
        return await self._db.run_read(lambda s: [ResourcePreset(**row._mapping) for row in s.execute(query)])

    async def put_preset(self, preset: ResourcePreset) -> None:
        await self._db.run_write(lambda s: put_row(s, presets, "name", row_of(preset)))

    async def delete_preset(self, name: str) -> bool:
        query = delete(presets).where(presets.c.name == name)
        return await self._db.run_write(lambda s: bool(s.execute(query).rowcount))
