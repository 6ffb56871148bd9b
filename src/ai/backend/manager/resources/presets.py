"""Lists and changes resource presets (spec 03-09, "Resource Preset")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ai.backend.common.errors import Conflict, NotFound
from ai.backend.common.names import check_slug
from ai.backend.common.structs import replace
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.resources.model import ResourcePreset


class PresetStore(Protocol):
    """Stores resource presets by name."""

    async def presets(self) -> list[ResourcePreset]:
        """Returns all presets, ordered by name."""

    async def put_preset(self, preset: ResourcePreset) -> None:
        """Inserts a preset, or replaces the preset of that name."""

    async def delete_preset(self, name: str) -> bool:
        """Deletes a preset. Returns False if there is no such preset."""


class PresetService(msgspec.Struct, frozen=True):
    """Lists presets for all callers and lets superadmins change presets; changes raise Forbidden for other callers."""

    store: PresetStore

    async def presets(self) -> Sequence[ResourcePreset]:
        return await self.store.presets()

    async def create(self, caller: Caller, name: str, values: Mapping[str, Any]) -> ResourcePreset:
        """Creates a preset. Raises InvalidName; Conflict if the name is taken."""
        require(caller, Operation.CHANGE_AGENTS)
        check_slug(name, what="name", allow_dots=True)
        if await self._find(name) is not None:
            raise Conflict(f"There is a preset {name!r} already.", data={"name": "taken"})
        preset = ResourcePreset(name=name, **values)
        await self.store.put_preset(preset)
        return preset

    async def modify(self, caller: Caller, name: str, values: Mapping[str, Any]) -> ResourcePreset:
        """Replaces those fields of a preset that are in ``values``. Raises NotFound."""
        require(caller, Operation.CHANGE_AGENTS)
        old_preset = await self._find(name)
        if old_preset is None:
            raise _preset_not_found_error(name)
        changed_preset = replace(old_preset, **values)
        await self.store.put_preset(changed_preset)
        return changed_preset

    async def delete(self, caller: Caller, name: str) -> None:
        """Deletes a preset. Raises NotFound."""
        require(caller, Operation.CHANGE_AGENTS)
        if not await self.store.delete_preset(name):
            raise _preset_not_found_error(name)

    async def _find(self, name: str) -> ResourcePreset | None:
        return next((preset for preset in await self.store.presets() if preset.name == name), None)


def _preset_not_found_error(name: str) -> NotFound:
    return NotFound(f"There is no preset {name[:64]!r}.")
