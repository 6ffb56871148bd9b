"""`backend.ai admin image`: images of registries, their other names, and where they are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from ai.backend.cli.calling import call
from ai.backend.cli.lazy import LazyGroup, Leaf, screen_of
from ai.backend.cli.transfer_bar import readable_size
from ai.backend.cli.vfolder_group import show, tell

if TYPE_CHECKING:
    from ai.backend.cli.output import Screen
    from ai.backend.client.session import AsyncSession

admin_image = LazyGroup("image", help="Images of container registries.")
_arch = click.option("--arch", default=None, help="The processor architecture; whichever there is if not given.")
_COLUMNS = (
    ("name", "Name"),
    ("registry", "Registry"),
    ("architecture", "Architecture"),
    ("tag", "Tag"),
    ("digest", "Digest"),
    ("size", "Size"),
    ("aliases", "Aliases"),
    ("agents", "Agents"),
)


@admin_image.command("list", cls=Leaf)
@click.option("--operation", is_flag=True, help="Only those for the platform's own work.")
@click.option("--installed", is_flag=True, help="Only those that agents have.")
def list_(operation: bool, installed: bool) -> None:
    """List the images of this cluster."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        found = await api.Image.list(operation=operation, installed=True if installed else None)
        if screen.is_json:
            screen.json(found)
            return
        rows = [
            {
                **one,
                "digest": (one["digest"] or "").removeprefix("sha256:")[:12],
                "size": readable_size(one["size_bytes"] or 0),
                "aliases": ", ".join(one["aliases"]),
                "agents": len(one["installed_agents"] or ()),
            }
            for one in found
        ]
        show(screen, rows, _COLUMNS, "There are no images.")

    call(screen, work)


async def follow(api: AsyncSession, screen: Screen, task_id: UUID | str) -> None:
    """Tell the steps of a background task, and fail as it does."""
    last = ""
    async for step in api.BackgroundTask(task_id).progress():
        if step.is_final:
            if step.state != "done":
                screen.fail(f"it {'failed' if step.state == 'failed' else 'was ' + step.state}: {step.message}")
            tell(screen, {"task_id": str(task_id), "message": step.message}, step.message or "done")
            return
        told = f"{int(step.current)}/{int(step.total)} {step.message or ''}".strip()
        if told != last:
            screen.note(told)
            last = told


def _task(begin: Callable[[AsyncSession], Awaitable[UUID]]) -> None:
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        await follow(api, screen, await begin(api))

    call(screen, work)


def _change(change: Callable[[AsyncSession], Awaitable[None]], told: dict[str, Any], text: str) -> None:
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        await change(api)
        tell(screen, told, text)

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
    told = {"alias": alias, "target": target}
    _change(lambda api: api.Image.alias_image(alias, target, arch), told, f"{alias} stands for {target}")


@admin_image.command("dealias", cls=Leaf)
@click.argument("alias")
def dealias(alias: str) -> None:
    """Let ALIAS stand for nothing any more."""
    _change(lambda api: api.Image.dealias_image(alias), {"alias": alias}, f"{alias} stands for nothing any more")


@admin_image.command("forget", cls=Leaf)
@click.argument("reference")
@_arch
def forget(reference: str, arch: str | None) -> None:
    """Let the image REFERENCE of a registry be unknown until the next rescan."""
    _change(lambda api: api.Image.forget_image(reference, arch), {"image": reference}, f"{reference} is forgotten")


@admin_image.command("clear", cls=Leaf)
@click.argument("registry")
def clear(registry: str) -> None:
    """Forget all images of REGISTRY until the next rescan."""
    _change(
        lambda api: api.Image.clear_images(registry), {"registry": registry}, f"the images of {registry} are forgotten"
    )


@admin_image.command("registries", cls=Leaf)
def registries() -> None:
    """List the configured registries (`admin etcd set config/docker/registry/NAME URL` makes one)."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        found = [{**one, "project": ", ".join(one["project"])} for one in await api.Image.list_registries()]
        columns = (("name", "Name"), ("url", "URL"), ("type", "Type"), ("project", "Project"), ("username", "User"))
        show(screen, found, columns, "There are no registries.")

    call(screen, work)
