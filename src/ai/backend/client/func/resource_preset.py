"""Resource presets."""

from __future__ import annotations

from typing import Any

from ai.backend.client.func.base import Mutations
from ai.backend.client.portal import Facade, blocking


class AsyncResourcePreset(Mutations):
    """``api_session.ResourcePreset``: ``resource_slots`` is a map, ``shared_memory`` a size such as ``64m``."""

    async def list(self) -> list[dict[str, Any]]:
        query = "{ resource_presets { name resource_slots shared_memory } }"
        return list((await self._admin.query(query))["resource_presets"])

    async def create(self, name: str, /, **props: Any) -> None:
        await self.mutate("create_resource_preset", {"name": ("String!", name)}, "CreateResourcePresetInput", props)

    async def update(self, name: str, /, **props: Any) -> None:
        await self.mutate("modify_resource_preset", {"name": ("String!", name)}, "ModifyResourcePresetInput", props)

    async def delete(self, name: str) -> None:
        await self.mutate("delete_resource_preset", {"name": ("String!", name)})


class ResourcePreset(Facade[AsyncResourcePreset]):
    """``api_session.ResourcePreset`` of a blocking session."""

    list = blocking(AsyncResourcePreset.list)
    create = blocking(AsyncResourcePreset.create)
    update = blocking(AsyncResourcePreset.update)
    delete = blocking(AsyncResourcePreset.delete)
