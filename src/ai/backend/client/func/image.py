"""Images of containers and their registries (spec 03-09 "Image Management")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from ai.backend.client.func.base import Mutations
from ai.backend.client.portal import Facade, blocking

IMAGE_FIELDS = (
    "name", "tag", "registry", "architecture", "digest", "size_bytes", "aliases", "installed", "installed_agents",
)  # fmt: skip
REGISTRY_FIELDS = ("hostname", "config { url type project username ssl_verify }")


class AsyncImage(Mutations):
    """``api_session.Image``. All but the lists is for superadmins."""

    async def list(
        self, *, operation: bool = False, installed: bool | None = None, fields: Sequence[str] = IMAGE_FIELDS
    ) -> list[dict[str, Any]]:
        """Lists the images that the caller may use."""
        query = (
            "query($is_operation: Boolean, $is_installed: Boolean) {"
            f" images(is_operation: $is_operation, is_installed: $is_installed) {{ {' '.join(fields)} }} }}"
        )
        reply = await self._admin.query(query, {"is_operation": operation, "is_installed": installed})
        return list(reply["images"])

    async def rescan_images(self, registry: str | None = None) -> UUID:
        """Scan a registry, or all; returns the id of the background task."""
        reply = await self.mutate("rescan_images", {"registry": ("String", registry)}, result="task_id")
        return UUID(reply["task_id"])

    async def preload(self, reference: str, target_agents: str) -> UUID:
        """Fetch an image on agents, such as ``*,!i-gpu-*`` or ``group:default``; returns the id of the task."""
        return await self._spread("preload_image", reference, target_agents)

    async def unload(self, reference: str, target_agents: str) -> UUID:
        """Remove an image from agents; as :meth:`preload`."""
        return await self._spread("unload_image", reference, target_agents)

    async def _spread(self, field: str, reference: str, target_agents: str) -> UUID:
        arguments = {"reference": ("String!", reference), "target_agents": ("String!", target_agents)}
        return UUID((await self.mutate(field, arguments, result="task_id"))["task_id"])

    async def alias_image(self, alias: str, target: str, arch: str | None = None) -> None:
        arguments = {"alias": ("String!", alias), "target": ("String!", target), "architecture": ("String", arch)}
        await self.mutate("alias_image", arguments)

    async def dealias_image(self, alias: str) -> None:
        await self.mutate("dealias_image", {"alias": ("String!", alias)})

    async def forget_image(self, reference: str, arch: str | None = None) -> None:
        """Remove a registry's image until the next scan; users may, with those made of their sessions."""
        await self.mutate("forget_image", {"reference": ("String!", reference), "architecture": ("String", arch)})

    async def clear_images(self, registry: str) -> None:
        await self.mutate("clear_images", {"registry": ("String!", registry)})

    async def list_registries(self) -> Sequence[Mapping[str, Any]]:
        """Lists the registries without their passwords."""
        reply = await self._admin.query(f"{{ container_registries {{ {' '.join(REGISTRY_FIELDS)} }} }}")
        return [{"name": one["hostname"], **one["config"]} for one in reply["container_registries"]]


class Image(Facade[AsyncImage]):
    list = blocking(AsyncImage.list)
    rescan_images = blocking(AsyncImage.rescan_images)
    preload = blocking(AsyncImage.preload)
    unload = blocking(AsyncImage.unload)
    alias_image = blocking(AsyncImage.alias_image)
    dealias_image = blocking(AsyncImage.dealias_image)
    forget_image = blocking(AsyncImage.forget_image)
    clear_images = blocking(AsyncImage.clear_images)
    list_registries = blocking(AsyncImage.list_registries)
