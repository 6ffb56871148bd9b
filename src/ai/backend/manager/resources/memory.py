"""The store of resource presets in memory."""

from __future__ import annotations

from ai.backend.manager.db.fence import check_fence
from ai.backend.manager.resources.model import ResourcePreset


class MemoryPresetStore:
    """Implements :class:`ai.backend.manager.resources.presets.PresetStore`."""

    def __init__(self) -> None:
        self._presets: dict[str, ResourcePreset] = {}

    async def presets(self) -> list[ResourcePreset]:
        return [self._presets[name] for name in sorted(self._presets)]

    async def put_preset(self, preset: ResourcePreset) -> None:
        check_fence()
        self._presets[preset.name] = preset

    async def delete_preset(self, name: str) -> bool:
        check_fence()
        return self._presets.pop(name, None) is not None
