"""`backend.ai admin image`: images of registries, their other names, and where they are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from ai.backend.cli.framework.invoke import call
from ai.backend.cli.framework.lazy import LazyGroup, Leaf, ListCommand, screen_of
from ai.backend.cli.framework.objects import change
from ai.backend.cli.framework.output import Column
from ai.backend.cli.framework.printing import follow_task, print_result, print_rows
from ai.backend.cli.framework.values import readable_size

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

admin_image = LazyGroup("image", help="Images of container registries.")
_arch = click.option("--arch", default=None, help="The processor architecture; whichever there is if not given.")
COLUMNS = (
    Column("name", "Name"),
    Column("registry", "Registry", is_wide=True),
    Column("architecture", "Arch"),
    Column("tag", "Tag"),
    Column("digest", "Digest", is_wide=True),
    Column("size", "Size", is_number=True),
    Column("aliases", "Aliases"),
    Column("agents", "Agents", is_number=True),
)


def _describe(image: dict[str, Any]) -> dict[str, Any]:
    return {
        **image,
        "digest": (image["digest"] or "").removeprefix("sha256:"),
        "size": readable_size(image["size_bytes"] or 0),
        "agents": len(image["installed_agents"] or ()),
    }


@admin_image.command("list", cls=ListCommand)
@click.option("--operation", is_flag=True, help="Only those for the platform's own work.")
@click.option("--installed", is_flag=True, help="Only those that agents have.")
def list_(operation: bool, installed: bool) -> None:
    """List the images of this cluster."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        images = await api.Image.list(operation=operation, installed=True if installed else None)
        print_rows(screen, images, COLUMNS, "there are no images", describe=_describe)

    call(screen, work)


def _task(begin: Callable[[AsyncSession], Awaitable[UUID]]) -> None:
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        task_id = await begin(api)
        message = await follow_task(api, screen, task_id, name="the task")
        print_result(screen, {"task_id": str(task_id), "message": message}, message or "done")

    call(screen, work)


@admin_image.command("rescan", cls=Leaf)
@click.option("-r", "--registry", default=None, help="One registry of the configuration instead of all.")
def rescan(registry: str | None) -> None:
    """Read what the configured registries have now."""
    _task(lambda api: api.Image.rescan_images(registry))


@admin_image.command("preload", cls=Leaf)
@click.argument("reference")
@click.argument("agents")
def preload(reference: str, agents: str) -> None:
    """Fetch the image REFERENCE on AGENTS: ids, patterns and group:NAME, with commas; !TERM takes away."""
    _task(lambda api: api.Image.preload(reference, agents))


@admin_image.command("unload", cls=Leaf)
@click.argument("reference")
@click.argument("agents")
def unload(reference: str, agents: str) -> None:
    """Remove the image REFERENCE from AGENTS, as `preload` names them."""
    _task(lambda api: api.Image.unload(reference, agents))


@admin_image.command("alias", cls=Leaf)
@click.argument("alias")
@click.argument("target")
@_arch
def alias(alias: str, target: str, arch: str | None) -> None:
    """Let ALIAS stand for the image TARGET."""
    document = {"alias": alias, "target": target}
    change(lambda api: api.Image.alias_image(alias, target, arch), document, f"{alias} stands for {target}")


@admin_image.command("dealias", cls=Leaf)
@click.argument("alias")
def dealias(alias: str) -> None:
    """Let ALIAS stand for nothing any more."""
    change(lambda api: api.Image.dealias_image(alias), {"alias": alias}, f"{alias} stands for nothing any more")


@admin_image.command("forget", cls=Leaf)
@click.argument("reference")
@_arch
def forget(reference: str, arch: str | None) -> None:
    """Let the image REFERENCE of a registry be unknown until the next rescan."""
    change(lambda api: api.Image.forget_image(reference, arch), {"image": reference}, f"{reference} is forgotten")


@admin_image.command("clear", cls=Leaf)
@click.argument("registry")
def clear(registry: str) -> None:
    """Forget all images of REGISTRY until the next rescan."""
    change(
        lambda api: api.Image.clear_images(registry), {"registry": registry}, f"the images of {registry} are forgotten"
    )


@admin_image.command("registries", cls=ListCommand)
def registries() -> None:
    """List the configured registries (`admin etcd set config/docker/registry/NAME URL` makes one)."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        items = await api.Image.list_registries()
        columns = (
            Column("name", "Name"),
            Column("url", "URL"),
            Column("type", "Type"),
            Column("project", "Project"),
            Column("username", "User", is_wide=True),
        )
        print_rows(screen, items, columns, "there are no registries")

    call(screen, work)
