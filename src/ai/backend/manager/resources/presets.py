"""Use cases of superadmins on resource presets (spec 03-09, "Resource Preset")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ai.backend.common.errors import Conflict, Forbidden, NotFound
from ai.backend.common.names import check_slug
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.resources.model import ResourcePreset
from ai.backend.manager.resources.store import PresetStore


class PresetService:
    """Lists presets for everybody and lets superadmins change them; changes raise Forbidden for others."""

    def __init__(self, store: PresetStore) -> None:
        self._store = store

    async def presets(self) -> Sequence[ResourcePreset]:
        return await self._store.presets()

    async def create(self, caller: Caller, name: str, values: Mapping[str, Any]) -> ResourcePreset:
        """Creates a preset. Raises InvalidName; Conflict if the name is taken."""
        _require_superadmin(caller)
        check_slug(name, what="name", allow_dots=True)
        if await self._find(name) is not None:
            raise Conflict(f"There is a preset {name!r} already.", data={"name": "taken"})
        preset = ResourcePreset(name=name, **values)
        await self._store.put_preset(preset)
        return preset

    async def modify(self, caller: Caller, name: str, values: Mapping[str, Any]) -> ResourcePreset:
        """Replaces the fields that ``values`` has and that are not None. Raises NotFound."""
        _require_superadmin(caller)
        existing = await self._find(name)
        if existing is None:
            raise _not_found(name)
        changed = replace(existing, **{field: value for field, value in values.items() if value is not None})
        await self._store.put_preset(changed)
        return changed

    async def delete(self, caller: Caller, name: str) -> None:
        """Deletes a preset. Raises NotFound."""
        _require_superadmin(caller)
        if not await self._store.delete_preset(name):
            raise _not_found(name)

    async def _find(self, name: str) -> ResourcePreset | None:
        return next((p for p in await self._store.presets() if p.name == name), None)


def _require_superadmin(caller: Caller) -> None:
    if not caller.is_superadmin:
        raise Forbidden("Only superadmins change presets.")


def _not_found(name: str) -> NotFound:
    return NotFound(f"There is no preset {name[:64]!r}.")
