"""GraphQL fields of images and registries (spec 03-09 "Image Management", client wire contract 3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ariadne import MutationType, QueryType

from ai.backend.common.errors import BackendError, ImageNotFound, InvalidInput, NotFound, NotSupported
from ai.backend.common.ids import TaskId
from ai.backend.common.images import split_image
from ai.backend.common.slots import format_quantity
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.graphql import values
from ai.backend.manager.graphql.context import Context, Info, answer, context_of
from ai.backend.manager.graphql.values import View
from ai.backend.manager.images.facade import Images
from ai.backend.manager.images.model import ContainerRegistry, ContainerRegistryType, Image
from ai.backend.manager.images.registries import require_superadmin
from ai.backend.manager.images.service import ImageFilter, merge_images, resolve_image

query = QueryType()
mutation = MutationType()
_HIDDEN = "*****"


def _images(context: Context) -> Images:
    if context.services.images is None:
        raise NotSupported("This manager keeps no images.")
    return context.services.images


# ---- images ----------------------------------------------------------------------------------------------


@query.field("images")
async def images(
    _: Any,
    info: Info,
    is_installed: bool | None = None,
    is_operation: bool | None = None,
    domain: str | None = None,
    group: str | None = None,
    scaling_group: str | None = None,
) -> list[values.View]:
    context = context_of(info)
    if context.services.images is None:
        merged = merge_images(await context.services.agents.living())
        return [image_view(image, context.caller) for image in merged if is_installed is not False]
    image_filter = ImageFilter(
        is_installed=is_installed, is_operation=is_operation, domain=domain, group=group, scaling_group=scaling_group
    )
    images = await context.services.images.catalogue.images(context.caller, image_filter)
    return [image_view(image, context.caller) for image in images]


@query.field("image")
async def image(_: Any, info: Info, reference: str, architecture: str | None = None) -> values.View | None:
    context = context_of(info)
    services = context.services.images
    try:
        if services is None:
            image = resolve_image(merge_images(await context.services.agents.living()), reference, architecture)
        else:
            image = await services.catalogue.image(context.caller, reference, architecture)
    except ImageNotFound:
        return None
    return image_view(image, context.caller)


async def _begin(info: Info, name: str, work: Callable[[Images], Awaitable[TaskId]]) -> values.View:
    """Starts an audited background task and returns its id."""
    context = context_of(info)
    try:
        async with context.audited(info.field_name, "image", name):
            task_id = await work(_images(context))
    except BackendError as e:
        return {"ok": False, "msg": e.message, "task_id": None}
    return {"ok": True, "msg": "", "task_id": task_id}


@mutation.field("rescan_images")
async def rescan(_: Any, info: Info, registry: str | None = None) -> values.View:
    caller = context_of(info).caller
    return await _begin(info, registry or "*", lambda services: services.rescan.start(caller, registry or None))


@mutation.field("preload_image")
@mutation.field("unload_image")
async def spread(
    _: Any, info: Info, reference: str, target_agents: str, architecture: str | None = None
) -> values.View:
    caller = context_of(info).caller

    def work(services: Images) -> Awaitable[TaskId]:
        preloader = services.spreading
        start = preloader.preload if info.field_name == "preload_image" else preloader.unload
        return start(caller, reference, target_agents, architecture)

    return await _begin(info, reference, work)


@mutation.field("forget_image")
async def forget(_: Any, info: Info, reference: str, architecture: str | None = None) -> values.View:
    context = context_of(info)
    return await answer(
        info,
        "image",
        reference,
        lambda: _images(context).catalogue.forget(context.caller, reference, architecture),
    )


@mutation.field("alias_image")
async def alias(_: Any, info: Info, alias: str, target: str, architecture: str | None = None) -> values.View:
    context = context_of(info)
    # The published client sends the architecture as an undeclared variable.
    architecture = architecture or context.variables.get("architecture")
    return await answer(
        info, "image", alias, lambda: _images(context).catalogue.alias(context.caller, alias, target, architecture)
    )


@mutation.field("dealias_image")
async def dealias(_: Any, info: Info, alias: str) -> values.View:
    context = context_of(info)
    return await answer(info, "image", alias, lambda: _images(context).catalogue.dealias(context.caller, alias))


@mutation.field("clear_images")
async def clear(_: Any, info: Info, registry: str) -> values.View:
    context = context_of(info)
    return await answer(info, "registry", registry, lambda: _images(context).catalogue.clear(context.caller, registry))


# ---- registries ------------------------------------------------------------------------------------------


def registry_view(registry: ContainerRegistry) -> values.View:
    return {
        "id": registry.name,
        "hostname": registry.name,
        "config": {
            "url": registry.url,
            "type": registry.type.value,
            "project": list(registry.projects),
            "username": registry.username,
            "password": _HIDDEN if registry.password else "",
            "ssl_verify": registry.ssl_verify,
        },
    }


@query.field("container_registries")
async def container_registries(_: Any, info: Info) -> list[values.View]:
    context = context_of(info)
    require_superadmin(context.caller, "see how registries are configured")
    return [registry_view(registry) for registry in (await _images(context).registries.all()).values()]


@query.field("container_registry")
async def container_registry(_: Any, info: Info, hostname: str) -> values.View | None:
    context = context_of(info)
    require_superadmin(context.caller, "see how registries are configured")
    try:
        return registry_view(await _images(context).registries.get(hostname))
    except NotFound:
        return None


def _with_props(name: str, props: values.View, old: ContainerRegistry | None = None) -> ContainerRegistry:
    """Returns a registry with changed properties; null ones stay. Raises InvalidInput for an unknown type."""
    changes = {key: value for key, value in props.items() if value is not None}
    kind = str(changes.get("type", old.type.value if old else "")).lower()
    kinds = {"docker": ContainerRegistryType.DOCKER} | dict.fromkeys(
        ("harbor", "harbor2"), ContainerRegistryType.HARBOR2
    )
    if kind not in kinds:
        raise InvalidInput("A registry is of type docker or harbor2.", data={"type": "unknown"})
    old = old or ContainerRegistry(name=name, url="")
    password = changes.get("password", old.password)
    return ContainerRegistry(
        name=name,
        url=changes.get("url", old.url),
        type=kinds[kind],
        projects=tuple(p for p in changes.get("project", old.projects) if p),
        username=changes.get("username", old.username),
        password=old.password if password == _HIDDEN else password,
        ssl_verify=changes.get("ssl_verify", old.ssl_verify),
    )


@mutation.field("create_container_registry")
@mutation.field("modify_container_registry")
@mutation.field("delete_container_registry")
async def put_registry(_: Any, info: Info, hostname: str, props: values.View | None = None) -> values.View:
    context = context_of(info)

    async def work() -> ContainerRegistry:
        registries = _images(context).registries
        match info.field_name:
            case "create_container_registry":
                return await registries.add(context.caller, _with_props(hostname, props or {}))
            case "modify_container_registry":
                require_superadmin(context.caller, "configure registries")
                return await registries.change(
                    context.caller, _with_props(hostname, props or {}, await registries.get(hostname))
                )
            case _:
                return await registries.remove(context.caller, hostname)

    return await answer(info, "container_registry", hostname, work, registry_view)


IMAGE_BINDABLES = (query, mutation)


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
        "resource_limits": _limits(image),
        "supported_accelerators": _words(image.labels.get("ai.backend.accelerators")),
        "installed": bool(image.agents),
        "installed_agents": list(image.agents) if caller.sees_all else None,
    }


def _limits(image: Image) -> list[View]:
    """Returns the minimum of each slot; there is no maximum (spec 03-09, ResourceLimit)."""
    return [{"key": name, "min": format_quantity(value), "max": "Infinity"} for name, value in image.min_slots.items()]


def _words(text: str | None) -> Sequence[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]
