"""`backend.ai admin image`: images of registries, their aliases, and the agents that have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import LazyGroup, ListCommand, Outcome, screen_of
from ai.backend.cli.framework.objects import change, follow_to_end
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.values import describe_slots, readable_size

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

admin_image = LazyGroup("image", help="Images of container registries.")
_ARCHITECTURE_OPTION = click.option(
    "--arch", default=None, help="The processor architecture; whichever there is if not given."
)
_REFERENCE_ARGUMENT = click.argument("reference")
_AGENTS_ARGUMENT = click.argument("agents")
COLUMNS = columns(
    "name | registry/wide | architecture: Arch | tag | digest/wide | size/number | aliases | minimum/roomy | "
    "here: Ready"
)


def _describe_image(image: dict[str, Any]) -> dict[str, Any]:
    return {
        **image,
        "digest": (image["digest"] or "").removeprefix("sha256:"),
        "size": readable_size(image["size_bytes"] or 0),
        "minimum": describe_slots({limit["key"]: limit["min"] for limit in image.get("resource_limits") or ()}),
        "here": _describe_presence(image),
    }


def _describe_presence(image: Mapping[str, Any]) -> str:
    """Returns "yes" or "no" for whether agents have an image, or for superadmins the number of such agents."""
    installed_agents = image["installed_agents"]
    return ("yes" if image["installed"] else "no") if installed_agents is None else f"on {len(installed_agents)}"


async def print_images(api: AsyncSession, *, operation: bool = False, installed: bool = False) -> None:
    """Prints the images that the caller may use."""
    from ai.backend.client.func.image import IMAGE_FIELDS

    screen = screen_of()
    fields = IMAGE_FIELDS if screen.is_json else (*IMAGE_FIELDS, "resource_limits { key min }")
    images = await api.Image.list(operation=operation, installed=True if installed else None, fields=fields)
    screen.print_rows(images, COLUMNS, "there are no images", describe=_describe_image)


@admin_image.command("list", cls=ListCommand)
@click.option("--operation", is_flag=True, help="Only those for the platform's own work.")
@click.option("--installed", is_flag=True, help="Only those that agents have.")
async def list_(api: AsyncSession, operation: bool, installed: bool) -> None:
    """List the images of this cluster."""
    await print_images(api, operation=operation, installed=installed)


@admin_image.command("rescan")
@click.option("-r", "--registry", default=None, help="One registry of the configuration instead of all.")
async def rescan(api: AsyncSession, registry: str | None) -> Outcome:
    """Read the images that the configured registries have now."""
    return await follow_to_end(api, await api.Image.rescan_images(registry), name="the task")


@admin_image.command("preload")
@_REFERENCE_ARGUMENT
@_AGENTS_ARGUMENT
async def preload(api: AsyncSession, reference: str, agents: str) -> Outcome:
    """Fetch the image REFERENCE on AGENTS: ids, patterns and group:NAME, with commas; !TERM takes away."""
    return await follow_to_end(api, await api.Image.preload(reference, agents), name="the task")


@admin_image.command("unload")
@_REFERENCE_ARGUMENT
@_AGENTS_ARGUMENT
async def unload(api: AsyncSession, reference: str, agents: str) -> Outcome:
    """Remove the image REFERENCE from AGENTS, as `preload` names them."""
    return await follow_to_end(api, await api.Image.unload(reference, agents), name="the task")


@admin_image.command("alias")
@click.argument("alias")
@click.argument("target")
@_ARCHITECTURE_OPTION
def alias(alias: str, target: str, arch: str | None) -> None:
    """Let ALIAS stand for the image TARGET."""
    document = {"alias": alias, "target": target}
    change(lambda api: api.Image.alias_image(alias, target, arch), document, f"{alias} stands for {target}")


@admin_image.command("dealias")
@click.argument("alias")
def dealias(alias: str) -> None:
    """Remove the image alias ALIAS."""
    change(lambda api: api.Image.dealias_image(alias), {"alias": alias}, f"{alias} stands for nothing any more")


@admin_image.command("forget")
@_REFERENCE_ARGUMENT
@_ARCHITECTURE_OPTION
def forget(reference: str, arch: str | None) -> None:
    """Forget the image REFERENCE of a registry until the next rescan."""
    change(lambda api: api.Image.forget_image(reference, arch), {"image": reference}, f"{reference} is forgotten")


@admin_image.command("clear")
@click.argument("registry")
def clear(registry: str) -> None:
    """Forget all images of REGISTRY until the next rescan."""
    result_text = f"the images of {registry} are forgotten"
    change(lambda api: api.Image.clear_images(registry), {"registry": registry}, result_text)


@admin_image.command("registries", cls=ListCommand)
async def registries(api: AsyncSession) -> None:
    """List the configured registries (`admin etcd set config/docker/registry/NAME URL` makes one)."""
    registry_columns = columns("name | url: URL | type | project | username/wide: User")
    screen_of().print_rows(await api.Image.list_registries(), registry_columns, "there are no registries")
