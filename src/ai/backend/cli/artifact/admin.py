"""`backend.ai admin artifact`: registries, scans, imports and cleanups (spec 03-17); for superadmins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.artifact.group import TYPE, admin_artifact, command, format_revisions, list_command
from ai.backend.cli.framework.invoke import call
from ai.backend.cli.framework.lazy import LazyGroup, screen_of
from ai.backend.cli.framework.objects import change as change_object
from ai.backend.cli.framework.objects import list_them, print_reply
from ai.backend.cli.framework.output import Column, Screen
from ai.backend.cli.framework.params import pair
from ai.backend.cli.framework.printing import follow_task, print_result
from ai.backend.cli.framework.progress import TransferBar

if TYPE_CHECKING:
    from ai.backend.client.func.bgtask import Progress
    from ai.backend.client.session import AsyncSession

__all__ = ["admin_artifact"]
registry = LazyGroup("registry", help="Where artifacts come from: hubs, other installations, uploads.")

REGISTRY_COLUMNS = [
    Column("name", "Name"),
    Column("type", "Type"),
    Column("url", "URL"),
    Column("credentials", "Credentials", is_wide=True),
    Column("storages", "Storages"),
]

STORAGE_COLUMNS = [
    Column("host", "Storage"),
    Column("backend", "Backend"),
    Column("capabilities", "Can"),
    Column("stages", "Default for"),
]


def _credentials(token_file: str | None, access_key: str | None) -> dict[str, str] | None:
    """Read credentials from a file or the environment, since other users can see the arguments of a command."""
    if token_file is not None:
        with click.open_file(token_file) as file:
            return {"token": file.read().strip()}
    if access_key is None:
        return None
    secret = os.environ.get("REGISTRY_SECRET_KEY") or click.prompt("Secret key", hide_input=True, err=True)
    return {"access_key": access_key, "secret_key": secret}


_token_file = click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="A file with the token of a hub; - is the standard input.",
)
_access_key = click.option(
    "--access-key", metavar="KEY", help="The keypair at another installation; the secret key is REGISTRY_SECRET_KEY."
)
_storage = click.option(
    "--storage",
    "storages",
    type=pair,
    multiple=True,
    metavar="STAGE=PROXY:STORAGE",
    help="Where the stage download, verify or archive has its files. Repeat for more.",
)


@list_command("list", of=registry)
def list_registries() -> None:
    """List registries."""
    list_them(lambda api: api.Artifact.registries(), REGISTRY_COLUMNS, "there are no registries")


@command("add", of=registry)
@click.argument("name")
@click.argument("type_", metavar="TYPE", type=click.Choice(["huggingface", "reservoir", "local"]))
@click.argument("url", default="")
@_token_file
@_access_key
@_storage
def add(
    name: str,
    type_: str,
    url: str,
    token_file: str | None,
    access_key: str | None,
    storages: tuple[tuple[str, str], ...],
) -> None:
    """Add a registry: a hub (huggingface), another installation (reservoir), or a local one for uploads."""
    options: dict[str, Any] = {"credentials": _credentials(token_file, access_key), "storages": dict(storages)}
    print_reply(lambda api: api.Artifact.add_registry(name, type_, url, **options), lambda registry: f"added {name}")


@command("change", of=registry)
@click.argument("name")
@click.option("--url", help="Where it is now.")
@_token_file
@_access_key
@_storage
def change(
    name: str, url: str | None, token_file: str | None, access_key: str | None, storages: tuple[tuple[str, str], ...]
) -> None:
    """Change a registry; what is left out stays."""
    options: dict[str, Any] = {"credentials": _credentials(token_file, access_key), "storages": dict(storages) or None}
    print_reply(lambda api: api.Artifact.change_registry(name, url=url, **options), lambda registry: f"changed {name}")


@command("remove", of=registry)
@click.argument("name")
def remove(name: str) -> None:
    """Forget a registry with all that was found in it. It is refused while files of it are here."""
    change_object(lambda api: api.Artifact.remove_registry(name), {"removed": name}, f"removed {name}")


@list_command("storages", of=admin_artifact)
def storages() -> None:
    """List the storages that artifacts can lie in."""
    list_them(lambda api: api.Artifact.storages(), STORAGE_COLUMNS, "there are no storages")


@command("scan", of=admin_artifact)
@click.argument("registry_name", metavar="REGISTRY")
@click.argument("names", nargs=-1)
@click.option("-t", "--type", "artifact_type", type=TYPE, help="Only this type.")
@click.option("--search", metavar="TEXT", help="Only names with this in them.")
@click.option("--author", metavar="NAME", help="Only what this author has published.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Artifacts at most.")
@click.option("--quick", is_flag=True, help="Only list: no sizes, no READMEs, of hubs the usual version alone.")
@click.option(
    "--delegate-to", metavar="REGISTRY", help="Have the other installation scan this registry of its own first."
)
def scan(registry_name: str, names: tuple[str, ...], quick: bool, **options: Any) -> None:
    """Look what REGISTRY has, or only at the artifacts NAMES. What is known already stays as it is."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        task = await api.Artifact.scan(registry_name, names=names, closely=not quick, **options)
        message = await follow_task(api, screen, task, name="the scan", describe=_describe_scan)
        print_result(screen, {"bgtask_id": task, "message": message}, message)

    call(screen, work)


def _describe_scan(step: Progress) -> str:
    return f"{step.message}: {int(step.current)} artifacts"


def _act(method: str, revisions: tuple[str, ...]) -> None:
    print_reply(lambda api: getattr(api.Artifact, method)(revisions), format_revisions)


@command("import", of=admin_artifact)
@click.argument("revisions", nargs=-1, required=True)
@click.option("--delegate", is_flag=True, help="The other installation is to import first what it has not.")
@click.option("--no-wait", is_flag=True, help="Do not wait until they are available.")
def import_(revisions: tuple[str, ...], delegate: bool, no_wait: bool) -> None:
    """Import REVISIONS, each written NAME[@VERSION]. Interrupting this command leaves the import under way."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        imported = await api.Artifact.import_revisions(revisions, delegate=delegate)
        if not no_wait:
            imported = await _wait(api, screen, [revision["id"] for revision in imported])
        print_result(screen, imported, format_revisions(imported))

    call(screen, work)


async def _wait(api: AsyncSession, screen: Screen, ids: list[str], *, with_notes: bool = True) -> Any:
    """Wait until all revisions are available; ``with_notes`` prints what an import waits for."""
    printed: dict[str, str] = {}
    with TransferBar(screen) as bar:

        def step(revision: Mapping[str, Any]) -> None:
            name, note = f"{revision['artifact']}@{revision['version']}", revision["status_info"]
            if with_notes and note and note != printed.get(name) and revision["status"] in ("PULLING", "PULLED"):
                printed[name] = note
                bar.close()
                screen.inform(f"{name}: {note}")
            progress = revision["progress"] or {"current": 0, "total": revision["size"] or 0}
            bar.update(name, progress["current"], progress["total"])

        return await api.Artifact.wait(ids, progress=step)


@command("upload", of=admin_artifact)
@click.argument("registry_name", metavar="REGISTRY")
@click.argument("name")
@click.argument("version")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("-t", "--type", "artifact_type", type=TYPE, default="MODEL", show_default=True, help="What it is.")
@click.option("-b", "--base-dir", type=click.Path(exists=True, file_okay=False), help="What FILES are relative to.")
@click.option("-d", "--description", default="", help="A sentence about it.")
@click.option("-j", "--parallel", type=click.IntRange(1, 32), default=4, show_default=True, help="Files at a time.")
def upload(
    registry_name: str, name: str, version: str, files: tuple[str, ...], base_dir: str | None, **options: Any
) -> None:
    """Make VERSION of the artifact NAME of FILES and directories, in the local REGISTRY."""
    screen = screen_of()
    paths = [Path(file).absolute() for file in files]

    async def work(api: AsyncSession) -> None:
        with TransferBar(screen) as bar:
            made = await api.Artifact.upload(
                registry_name, name, version, paths, basedir=base_dir, progress=bar.update, **options
            )
        uploaded = await _wait(api, screen, [made["id"]], with_notes=False)
        print_result(screen, uploaded, format_revisions(uploaded))

    call(screen, work)


@command("cancel", of=admin_artifact)
@click.argument("revisions", nargs=-1, required=True)
def cancel(revisions: tuple[str, ...]) -> None:
    """End imports that are under way; what was fetched is removed."""
    _act("cancel", revisions)


@command("cleanup", of=admin_artifact)
@click.argument("revisions", nargs=-1, required=True)
def cleanup(revisions: tuple[str, ...]) -> None:
    """Remove the files of REVISIONS and keep what is known. It is refused while a session mounts one."""
    _act("cleanup", revisions)


@command("delete", of=admin_artifact)
@click.argument("name")
def delete(name: str) -> None:
    """Forget an artifact until the next scan. It is refused while files of it are here."""
    change_object(lambda api: api.Artifact.delete(name), {"deleted": name}, f"deleted {name}")
