"""Images of containers and their registries (spec 03-09 "Image Management")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from ai.backend.client.func.base import Area

IMAGE_FIELDS = (
    "name", "tag", "registry", "architecture", "digest", "size_bytes", "aliases", "installed", "installed_agents",
)  # fmt: skip
REGISTRY_FIELDS = ("hostname", "config { url type project username ssl_verify }")


class AsyncImage(Area):
    """Lists and manages container images (``api_session.Image``).

    Only superadmins may use calls other than the lists.
    """

    async def list(
        self, *, operation: bool = False, installed: bool | None = None, fields: Sequence[str] = IMAGE_FIELDS
    ) -> list[dict[str, Any]]:
        """Lists the images that the caller may use."""
        arguments = {"is_operation": ("Boolean", operation), "is_installed": ("Boolean", installed)}
        return list(await self._admin.select("images", fields, **arguments))

    async def rescan_images(self, registry: str | None = None) -> UUID:
        """Scans one registry, or all registries without a name. Returns the id of the background task."""
        return await self._start_task("rescan_images", registry=("String", registry))

    async def preload(self, reference: str, target_agents: str) -> UUID:
        """Fetches an image on agents, such as ``*,!i-gpu-*`` or ``group:default``.

        Returns the id of the background task.
        """
        arguments = {"reference": ("String!", reference), "target_agents": ("String!", target_agents)}
        return await self._start_task("preload_image", **arguments)

    async def unload(self, reference: str, target_agents: str) -> UUID:
        """Removes an image from agents. Arguments and result are those of :meth:`preload`."""
        arguments = {"reference": ("String!", reference), "target_agents": ("String!", target_agents)}
        return await self._start_task("unload_image", **arguments)

    async def _start_task(self, root: str, **arguments: tuple[str, Any]) -> UUID:
        return UUID((await self._admin.mutate(root, arguments, result="task_id"))["task_id"])

    async def alias_image(self, alias: str, target: str, arch: str | None = None) -> None:
        arguments = {"alias": ("String!", alias), "target": ("String!", target), "architecture": ("String", arch)}
        await self._admin.mutate("alias_image", arguments)

    async def dealias_image(self, alias: str) -> None:
        await self._admin.mutate("dealias_image", {"alias": ("String!", alias)})

    async def forget_image(self, reference: str, arch: str | None = None) -> None:
        """Removes a registry's image until the next scan. Users may remove images that were made of their sessions."""
        arguments = {"reference": ("String!", reference), "architecture": ("String", arch)}
        await self._admin.mutate("forget_image", arguments)

    async def clear_images(self, registry: str) -> None:
        await self._admin.mutate("clear_images", {"registry": ("String!", registry)})

    async def list_registries(self) -> Sequence[Mapping[str, Any]]:
        """Lists the image registries without their passwords."""
        registries = await self._admin.select("container_registries", REGISTRY_FIELDS)
        return [{"name": registry["hostname"], **registry["config"]} for registry in registries]
