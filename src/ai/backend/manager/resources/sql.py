"""The store of resource presets in SQL."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select, update

from ai.backend.infra.database import Database
from ai.backend.infra.database.rows import row_of
from ai.backend.manager.resources.model import ResourcePreset
from ai.backend.manager.resources.tables import presets


class SqlPresetStore:
    """Implements :class:`ai.backend.manager.resources.store.PresetStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def presets(self) -> list[ResourcePreset]:
        query = select(presets).order_by(presets.c.name)
        return await self._db.run_read(lambda s: [ResourcePreset(**row._mapping) for row in s.execute(query)])

    async def put_preset(self, preset: ResourcePreset) -> None:
        row = row_of(preset)

        def work(s: Connection) -> None:
            if s.execute(update(presets).where(presets.c.name == preset.name).values(row)).rowcount == 0:
                s.execute(insert(presets), row)

        await self._db.run_write(work)

    async def delete_preset(self, name: str) -> bool:
        query = delete(presets).where(presets.c.name == name)
        return await self._db.run_write(lambda s: bool(s.execute(query).rowcount))
