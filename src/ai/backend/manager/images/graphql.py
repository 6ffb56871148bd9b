"""Images and registries (spec 03-09 "Image Management", client wire contract 3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ai.backend.common.errors import BackendError, ImageNotFound, InvalidInput, NotFound, NotSupported
from ai.backend.common.ids import TaskId
from ai.backend.common.images import split_image
from ai.backend.common.slots import format_quantity
from ai.backend.common.structs import replace
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted, require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.graphql.context import Info, context_of, run_mutation
from ai.backend.manager.graphql.resolvers import mutation, query
from ai.backend.manager.graphql.values import View
from ai.backend.manager.images.facade import Images
from ai.backend.manager.images.model import ContainerRegistry, ContainerRegistryType, Image
from ai.backend.manager.images.service import ImageFilter, resolve_image

_HIDDEN_PASSWORD = "*****"
_REGISTRY_TYPES = {
    "docker": ContainerRegistryType.DOCKER,
    "harbor": ContainerRegistryType.HARBOR2,
    "harbor2": ContainerRegistryType.HARBOR2,
}


def registry_view(registry: ContainerRegistry) -> View:
    return {
        "id": registry.name,
        "hostname": registry.name,
        "config": {
            "url": registry.url,
            "type": registry.type.value,
            "project": list(registry.projects),
            "username": registry.username,
            "password": _HIDDEN_PASSWORD if registry.password else "",
            "ssl_verify": registry.ssl_verify,
        },
    }


def _change_registry(name: str, props: View, old_registry: ContainerRegistry | None = None) -> ContainerRegistry:
    """Returns a registry with changed properties; nulls change nothing. Raises InvalidInput for an unknown type."""
    values = {key: value for key, value in props.items() if value is not None}
    type_name = str(values.get("type", old_registry.type.value if old_registry else "")).lower()
    if type_name not in _REGISTRY_TYPES:
        raise InvalidInput("A registry is of type docker or harbor2.", data={"type": "unknown"})
    if "project" in values:
        values["projects"] = tuple(project for project in values.pop("project") if project)
    if values.get("password") == _HIDDEN_PASSWORD:
        del values["password"]
    return replace(
        old_registry or ContainerRegistry(name=name, url=""), **values | {"type": _REGISTRY_TYPES[type_name]}
    )


def image_view(image: Image, caller: Caller) -> View:
    registry, name, tag = split_image(image.name)
    return {
        "id": image.name,
        "name": name,
        "humanized_name": f"{name} {tag}".strip(),
        "tag": tag,
        "registry": registry,
        "architecture": image.architecture,
        "digest": image.digest,
        "labels": [{"key": key, "value": value} for key, value in image.labels.items()],
        "aliases": list(image.aliases),
        "size_bytes": image.size_bytes,
        "resource_limits": _slot_limits(image),
        "supported_accelerators": _split_at_commas(image.labels.get("ai.backend.accelerators")),
        "installed": bool(image.agents),
        "installed_agents": list(image.agents) if is_permitted(caller, Operation.SEE_AGENTS) else None,
    }


def _slot_limits(image: Image) -> list[View]:
    """Returns the minimum of each slot that an image needs, as the GraphQL type ResourceLimit (spec 03-09).

    There is no upper bound.
    """
    return [{"key": name, "min": format_quantity(value), "max": "Infinity"} for name, value in image.min_slots.items()]


def _split_at_commas(text: str | None) -> Sequence[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


class ImageResolvers:
    """Answers the GraphQL fields of images and container registries."""

    def __init__(self, images: Images | None, agent_images: Callable[[], Awaitable[Sequence[Image]]]) -> None:
        self._agent_images = agent_images
        self._images = images

    def _require_images(self) -> Images:
        if self._images is None:
            raise NotSupported("This manager keeps no images.")
        return self._images

    async def _change(
        self, info: Info, object_type: str, name: str, perform_change: Callable[[Images, Caller], Awaitable[object]]
    ) -> View:
        caller = context_of(info).caller

        async def run() -> object:
            return await perform_change(self._require_images(), caller)

        return await run_mutation(info, object_type, name, run)

    @query("images")
    async def images(self, info: Info, **arguments: Any) -> list[View]:
        caller, selection = context_of(info).caller, ImageFilter(**arguments)
        images: Sequence[Image] = ()
        if self._images is not None:
            images = await self._images.service.images(caller, selection)
        elif selection.is_installed is not False:
            images = await self._agent_images()
        return [image_view(image, caller) for image in images]

    @query("image")
    async def image(self, info: Info, reference: str, architecture: str | None = None) -> View | None:
        context = context_of(info)
        try:
            if self._images is None:
                image = resolve_image(await self._agent_images(), reference, architecture)
            else:
                image = await self._images.service.image(context.caller, reference, architecture)
        except ImageNotFound:
            return None
        return image_view(image, context.caller)

    async def _start_task(
        self, info: Info, name: str, start_in_background: Callable[[Images], Awaitable[TaskId]]
    ) -> View:
        context = context_of(info)
        try:
            async with context.audit_change(info.field_name, "image", name):
                task_id = await start_in_background(self._require_images())
        except BackendError as e:
            return {"ok": False, "msg": e.message, "task_id": None}
        return {"ok": True, "msg": "", "task_id": task_id}

    @mutation("rescan_images")
    async def rescan(self, info: Info, registry: str | None = None) -> View:
        caller = context_of(info).caller
        return await self._start_task(
            info, registry or "*", lambda images: images.rescan.start(caller, registry or None)
        )

    @mutation("preload_image")
    @mutation("unload_image")
    async def preload_or_unload(
        self, info: Info, reference: str, target_agents: str, architecture: str | None = None
    ) -> View:
        caller = context_of(info).caller

        def work(images: Images) -> Awaitable[TaskId]:
            start_method = images.preloader.preload if info.field_name == "preload_image" else images.preloader.unload
            return start_method(caller, reference, target_agents, architecture)

        return await self._start_task(info, reference, work)

    @mutation("forget_image")
    async def forget(self, info: Info, reference: str, architecture: str | None = None) -> View:
        return await self._change(
            info, "image", reference, lambda images, caller: images.service.forget(caller, reference, architecture)
        )

    @mutation("alias_image")
    async def alias(self, info: Info, alias: str, target: str, architecture: str | None = None) -> View:
        # The published client sends the architecture among the variables and does not declare it.
        architecture = architecture or context_of(info).variables.get("architecture")
        return await self._change(
            info, "image", alias, lambda images, caller: images.service.alias(caller, alias, target, architecture)
        )

    @mutation("dealias_image")
    async def dealias(self, info: Info, alias: str) -> View:
        return await self._change(info, "image", alias, lambda images, caller: images.service.dealias(caller, alias))

    @mutation("clear_images")
    async def clear(self, info: Info, registry: str) -> View:
        return await self._change(
            info, "registry", registry, lambda images, caller: images.service.clear(caller, registry)
        )

    @query("container_registries")
    async def container_registries(self, info: Info) -> list[View]:
        context = context_of(info)
        require(context.caller, Operation.SEE_REGISTRIES)
        return [registry_view(registry) for registry in (await self._require_images().registries.all()).values()]

    @query("container_registry")
    async def container_registry(self, info: Info, hostname: str) -> View | None:
        context = context_of(info)
        require(context.caller, Operation.SEE_REGISTRIES)
        try:
            return registry_view(await self._require_images().registries.get(hostname))
        except NotFound:
            return None

    @mutation("create_container_registry")
    @mutation("modify_container_registry")
    @mutation("delete_container_registry")
    async def put_registry(self, info: Info, hostname: str, props: View | None = None) -> View:
        context = context_of(info)

        async def work() -> ContainerRegistry:
            registries = self._require_images().registries
            match info.field_name:
                case "create_container_registry":
                    return await registries.add(context.caller, _change_registry(hostname, props or {}))
                case "modify_container_registry":
                    require(context.caller, Operation.CONFIGURE_REGISTRIES)
                    return await registries.change(
                        context.caller, _change_registry(hostname, props or {}, await registries.get(hostname))
                    )
                case _:
                    return await registries.remove(context.caller, hostname)

        return await run_mutation(info, "container_registry", hostname, work, registry_view)
