"""Images and registries (spec 03-09 "Image Management", client wire contract 3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ariadne import MutationType, QueryType

from ai.backend.common.errors import BackendError, ImageNotFound, InvalidInput, NotFound, NotSupported
from ai.backend.common.ids import TaskId
from ai.backend.manager.api.graphql import views
from ai.backend.manager.api.graphql.administration import answer
from ai.backend.manager.api.graphql.resolvers import Context, Info, context_of
from ai.backend.manager.model.image import ContainerRegistry, ContainerRegistryType
from ai.backend.manager.services.images.bundle import Images
from ai.backend.manager.services.images.catalogue import ImageFilter
from ai.backend.manager.services.images.registries import require_superadmin
from ai.backend.manager.services.images.resolving import resolve_image

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
) -> list[views.View]:
    context = context_of(info)
    if context.services.images is None:
        found = await context.services.cluster.images()
        return [views.image_view(image, context.caller) for image in found if is_installed is not False]
    wanted = ImageFilter(
        is_installed=is_installed, is_operation=is_operation, domain=domain, group=group, scaling_group=scaling_group
    )
    listed = await context.services.images.catalogue.images(context.caller, wanted)
    return [views.image_view(image, context.caller) for image in listed]


@query.field("image")
async def image(_: Any, info: Info, reference: str, architecture: str | None = None) -> views.View | None:
    context = context_of(info)
    kept = context.services.images
    try:
        if kept is None:
            found = resolve_image(await context.services.cluster.images(), reference, architecture)
        else:
            found = await kept.catalogue.image(context.caller, reference, architecture)
    except ImageNotFound:
        return None
    return views.image_view(found, context.caller)


async def _begin(info: Info, name: str, work: Callable[[Images], Awaitable[TaskId]]) -> views.View:
    """Begin a background task, keep who did, and say how to follow it."""
    context = context_of(info)
    try:
        async with context.audited(info.field_name, "image", name):
            task_id = await work(_images(context))
    except BackendError as e:
        return {"ok": False, "msg": e.message, "task_id": None}
    return {"ok": True, "msg": "", "task_id": task_id}


@mutation.field("rescan_images")
async def rescan(_: Any, info: Info, registry: str | None = None) -> views.View:
    caller = context_of(info).caller
    return await _begin(info, registry or "*", lambda kept: kept.rescan.start(caller, registry or None))


@mutation.field("preload_image")
@mutation.field("unload_image")
async def spread(_: Any, info: Info, reference: str, target_agents: str, architecture: str | None = None) -> views.View:
    caller = context_of(info).caller

    def work(kept: Images) -> Awaitable[TaskId]:
        move = kept.spreading.preload if info.field_name == "preload_image" else kept.spreading.unload
        return move(caller, reference, target_agents, architecture)

    return await _begin(info, reference, work)


@mutation.field("forget_image")
async def forget(_: Any, info: Info, reference: str, architecture: str | None = None) -> views.View:
    context = context_of(info)
    return await answer(
        info,
        "image",
        reference,
        lambda: _images(context).catalogue.forget(context.caller, reference, architecture),
    )


@mutation.field("alias_image")
async def alias(_: Any, info: Info, alias: str, target: str, architecture: str | None = None) -> views.View:
    context = context_of(info)
    # The published client gives the architecture among the variables and does not declare it.
    architecture = architecture or context.variables.get("architecture")
    return await answer(
        info, "image", alias, lambda: _images(context).catalogue.alias(context.caller, alias, target, architecture)
    )


@mutation.field("dealias_image")
async def dealias(_: Any, info: Info, alias: str) -> views.View:
    context = context_of(info)
    return await answer(info, "image", alias, lambda: _images(context).catalogue.dealias(context.caller, alias))


@mutation.field("clear_images")
async def clear(_: Any, info: Info, registry: str) -> views.View:
    context = context_of(info)
    return await answer(info, "registry", registry, lambda: _images(context).catalogue.clear(context.caller, registry))


# ---- registries ------------------------------------------------------------------------------------------


def registry_view(registry: ContainerRegistry) -> views.View:
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
async def container_registries(_: Any, info: Info) -> list[views.View]:
    context = context_of(info)
    require_superadmin(context.caller, "see how registries are configured")
    return [registry_view(registry) for registry in (await _images(context).registries.all()).values()]


@query.field("container_registry")
async def container_registry(_: Any, info: Info, hostname: str) -> views.View | None:
    context = context_of(info)
    require_superadmin(context.caller, "see how registries are configured")
    try:
        return registry_view(await _images(context).registries.get(hostname))
    except NotFound:
        return None


def _with_props(name: str, props: views.View, old: ContainerRegistry | None = None) -> ContainerRegistry:
    """What is left out, or null, stays as it is. Raises InvalidInput: there is no such type."""
    given = {key: value for key, value in props.items() if value is not None}
    kind = str(given.get("type", old.type.value if old else "")).lower()
    kinds = {"docker": ContainerRegistryType.DOCKER} | dict.fromkeys(
        ("harbor", "harbor2"), ContainerRegistryType.HARBOR2
    )
    if kind not in kinds:
        raise InvalidInput("A registry is of type docker or harbor2.", data={"type": "unknown"})
    old = old or ContainerRegistry(name=name, url="")
    password = given.get("password", old.password)
    return ContainerRegistry(
        name=name,
        url=given.get("url", old.url),
        type=kinds[kind],
        projects=tuple(p for p in given.get("project", old.projects) if p),
        username=given.get("username", old.username),
        password=old.password if password == _HIDDEN else password,
        ssl_verify=given.get("ssl_verify", old.ssl_verify),
    )


@mutation.field("create_container_registry")
@mutation.field("modify_container_registry")
@mutation.field("delete_container_registry")
async def put_registry(_: Any, info: Info, hostname: str, props: views.View | None = None) -> views.View:
    context = context_of(info)

    async def work() -> ContainerRegistry:
        book = _images(context).registries
        match info.field_name:
            case "create_container_registry":
                return await book.add(context.caller, _with_props(hostname, props or {}))
            case "modify_container_registry":
                require_superadmin(context.caller, "configure registries")
                return await book.change(context.caller, _with_props(hostname, props or {}, await book.get(hostname)))
            case _:
                return await book.remove(context.caller, hostname)

    return await answer(info, "container_registry", hostname, work, registry_view)


IMAGE_BINDABLES = (query, mutation)
