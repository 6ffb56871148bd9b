"""Implements `backend.ai mgr image`, which manages the list of images without a running manager (spec 03-02, 03-06)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from ai.backend.common.errors import ImageNotFound, NotFound
from ai.backend.common.images import architecture_name, check_alias
from ai.backend.infra.clock import SystemClock
from ai.backend.infra.config_store import SQLiteConfigStore
from ai.backend.infra.database import Database
from ai.backend.manager.commands.running import run_on_database
from ai.backend.manager.composition.backing_services import config_store, sealer_of
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.images.client.scanner import scan_registry
from ai.backend.manager.images.model import ImageAlias, ScanStep
from ai.backend.manager.images.registries import ContainerRegistries
from ai.backend.manager.images.rescan import Rescan
from ai.backend.manager.images.sql import SqlImageStore
from ai.backend.manager.secrets.config import SealedConfigStore

T = TypeVar("T")


@click.group("image")
def image() -> None:
    """Manage the images of container registries."""


def _with_image_store(settings: ManagerSettings, work: Callable[[SqlImageStore], Awaitable[T]]) -> T:
    return run_on_database(settings, lambda database: work(SqlImageStore(database)))


@image.command("list")
@click.option("-r", "--registry", default=None, help="Only those of this registry.")
@click.pass_obj
def list_(settings: ManagerSettings, registry: str | None) -> None:
    """List the images that were found in registries."""
    images = _with_image_store(settings, lambda store: store.all(registry))
    aliases = _with_image_store(settings, lambda store: store.aliases())
    for row in images:
        names = [
            image_alias.alias
            for image_alias in aliases
            if image_alias.image == row.name and image_alias.architecture in (None, row.architecture)
        ]
        click.echo("  ".join([row.name, row.architecture, row.digest, *([f"({', '.join(names)})"] if names else [])]))


@image.command("rescan")
@click.argument("registry", required=False)
@click.pass_obj
def rescan(settings: ManagerSettings, registry: str | None) -> None:
    """Read the present images of REGISTRY, or of every configured one."""

    async def rescan_registries(database: Database) -> list[str]:
        config = config_store(settings, database)
        if isinstance(config, SQLiteConfigStore):
            await config.setup()
        sealed_config = SealedConfigStore(config, sealer_of(settings), opens=True)
        registries = ContainerRegistries(sealed_config, verifies_tls=settings.docker_registry.ssl_verify)
        try:
            chosen_registries = (
                [await registries.get(registry)] if registry else list((await registries.all()).values())
            )
        finally:
            close_config = getattr(config, "close", None)
            if close_config is not None:
                await close_config()
        if not chosen_registries:
            raise NotFound("no registry is configured (config/docker/registry)")
        scan = Rescan(SqlImageStore(database), scan_registry, registries, SystemClock())
        return [await scan.scan(registry_, on_step=_print_problem) for registry_ in chosen_registries]

    for line in run_on_database(settings, rescan_registries):
        click.echo(line)


def _print_problem(step: ScanStep) -> None:
    if step.skipped or step.failed:
        click.echo(f"{step.current}: {step.skipped or step.failed}", err=True)


@image.command("alias")
@click.argument("alias")
@click.argument("target")
@click.option("--arch", default=None, help="The processor architecture; whichever there is if not given.")
@click.pass_obj
def alias(settings: ManagerSettings, alias: str, target: str, arch: str | None) -> None:
    """Make ALIAS a name of the image TARGET of a registry."""

    async def add_alias(store: SqlImageStore) -> None:
        check_alias(alias)
        architecture = architecture_name(arch) if arch else None
        matches = {image.name for image in await store.lookup(target) if architecture in (None, image.architecture)}
        if len(matches) != 1:
            match_text = f"there are {', '.join(sorted(matches)[:20])}" if matches else "no registry had it"
            raise ImageNotFound(f"{target} is no one image: {match_text}")
        await store.put_alias(ImageAlias(alias=alias, image=matches.pop(), architecture=architecture))

    _with_image_store(settings, add_alias)


@image.command("dealias")
@click.argument("alias")
@click.pass_obj
def dealias(settings: ManagerSettings, alias: str) -> None:
    """Remove ALIAS."""
    if not _with_image_store(settings, lambda store: store.drop_alias(alias)):
        raise click.ClickException(f"there is no alias {alias}")


@image.command("forget")
@click.argument("name")
@click.option("--arch", default=None, help="Only of this processor architecture.")
@click.pass_obj
def forget(settings: ManagerSettings, name: str, arch: str | None) -> None:
    """Remove the image NAME until the next rescan."""
    if not _with_image_store(settings, lambda store: store.forget(name, architecture_name(arch) if arch else None)):
        raise click.ClickException(f"no registry had {name}")
