"""The port of the store of resource presets."""

from __future__ import annotations

from typing import Protocol

from ai.backend.manager.resources.model import ResourcePreset


class PresetStore(Protocol):
    """Stores resource presets by name."""

    async def presets(self) -> list[ResourcePreset]:
        """Returns all presets, ordered by name."""
        ...

    async def put_preset(self, preset: ResourcePreset) -> None:
        """Inserts the preset, or replaces the one with its name."""
        ...

    async def delete_preset(self, name: str) -> bool:
        """Returns False if there is no such preset."""
        ...
