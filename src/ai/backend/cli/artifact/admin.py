"""`backend.ai admin artifact`: registries, scans, imports and cleanups (spec 03-17); for superadmins."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.artifact.commands import TYPE
from ai.backend.cli.framework.invoke import run_in_event_loop
from ai.backend.cli.framework.lazy import Entry, LazyGroup, ListCommand, Outcome, screen_of
from ai.backend.cli.framework.objects import change as change_object
from ai.backend.cli.framework.objects import follow_task, list_objects, print_reply
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.params import options, parse_pair
from ai.backend.cli.framework.progress import TransferBar

if TYPE_CHECKING:
    from ai.backend.client.func.bgtask import Progress
    from ai.backend.client.session import AsyncSession

admin_artifact = LazyGroup(
    "artifact",
    help="Where artifacts come from: registries, scans, imports.",
    entries={"registry": Entry("ai.backend.cli.artifact.admin:registry", "The registries themselves.")},
)
registry = LazyGroup("registry", help="Where artifacts come from: hubs, other installations, uploads.")
REGISTRY_COLUMNS = columns(
    "name | type | url: URL | credentials/wide | storages | viewers | user_import_bytes/wide: User imports"
)
STORAGE_COLUMNS = columns("host: Storage | backend | capabilities: Can | stages: Default for")
_NAME_ARGUMENT = click.argument("name")
_REVISIONS_ARGUMENT = click.argument("revisions", nargs=-1, required=True)
_REGISTRY_ARGUMENT = click.argument("registry_name", metavar="REGISTRY")


def _format_revisions(revisions: Sequence[Mapping[str, Any]]) -> str:
    """Returns a line with the status of each revision."""
    return "\n".join(
        f"{revision['artifact']}@{revision['version']} is {revision['status']}"
        + (f": {revision['status_info']}" if revision["status_info"] else "")
        for revision in revisions
    )


def _read_credentials(token_file: str | None, access_key: str | None) -> dict[str, str] | None:
    """Reads credentials from a file or the environment, since other users can see the arguments of a command."""
    if token_file is not None:
        with click.open_file(token_file) as token_reader:
            return {"token": token_reader.read().strip()}
    if access_key is None:
        return None
    secret_key = os.environ.get("REGISTRY_SECRET_KEY") or click.prompt("Secret key", hide_input=True, err=True)
    return {"access_key": access_key, "secret_key": secret_key}


def _parse_size_option(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    from ai.backend.common.errors import InvalidQuantity
    from ai.backend.common.slots import BinarySize

    try:
        return int(BinarySize.parse(text)) if text is not None else None
    except InvalidQuantity as error:
        raise click.BadParameter(f"{text!r} is no size, such as 20g") from error


_registry_options = options(
    click.option(
        "--viewer",
        "viewers",
        multiple=True,
        metavar="WHO",
        help="Who may use its artifacts: everyone (default), domain:NAME, group:NAME, user:EMAIL. Repeat for more.",
    ),
    click.option(
        "--user-imports",
        "user_import_bytes",
        callback=_parse_size_option,
        metavar="SIZE",
        help="Users may import revisions of up to SIZE from it, such as 20g; 0 means that they may not.",
    ),
    click.option(
        "--token-file",
        type=click.Path(exists=True, dir_okay=False, allow_dash=True),
        help="A file with the token of a hub; - is the standard input.",
    ),
    click.option(
        "--access-key",
        metavar="KEY",
        help="The keypair at another installation; the secret key is REGISTRY_SECRET_KEY.",
    ),
    click.option(
        "--storage",
        "storages",
        type=parse_pair,
        multiple=True,
        metavar="STAGE=PROXY:STORAGE",
        help="Where the stage download, verify or archive has its files. Repeat for more.",
    ),
)


@registry.command("list", cls=ListCommand)
def list_registries() -> None:
    """List registries."""
    list_objects(lambda api: api.Artifact.registries(), REGISTRY_COLUMNS, "there are no registries")


@registry.command("add")
@_NAME_ARGUMENT
@click.argument("type_", metavar="TYPE", type=click.Choice(["huggingface", "reservoir", "local"]))
@click.argument("url", default="")
@_registry_options
def add(
    name: str, type_: str, url: str, token_file: str | None, access_key: str | None, storages: Any, **access: Any
) -> None:
    """Add a registry: a hub (huggingface), another installation (reservoir), or a local one for uploads."""
    props: dict[str, Any] = {"credentials": _read_credentials(token_file, access_key), "storages": dict(storages)}
    props |= {**access, "viewers": access["viewers"] or None}
    print_reply(lambda api: api.Artifact.add_registry(name, type_, url, **props), lambda _: f"added {name}")


@registry.command("change")
@_NAME_ARGUMENT
@click.option("--url", help="Where it is now.")
@_registry_options
def change(
    name: str, url: str | None, token_file: str | None, access_key: str | None, storages: Any, **access: Any
) -> None:
    """Change a registry; what is left out stays."""
    props: dict[str, Any] = {
        "credentials": _read_credentials(token_file, access_key),
        "storages": dict(storages) or None,
    }
    props |= {**access, "viewers": access["viewers"] or None}
    print_reply(lambda api: api.Artifact.change_registry(name, url=url, **props), lambda _: f"changed {name}")


@registry.command("remove")
@_NAME_ARGUMENT
def remove(name: str) -> None:
    """Forget a registry and its artifacts. Refused while files of the registry are stored."""
    change_object(lambda api: api.Artifact.remove_registry(name), {"removed": name}, f"removed {name}")


@admin_artifact.command("storages", cls=ListCommand)
def storages() -> None:
    """List the storages that artifacts can lie in."""
    list_objects(lambda api: api.Artifact.storages(), STORAGE_COLUMNS, "there are no storages")


@admin_artifact.command("scan")
@_REGISTRY_ARGUMENT
@click.argument("names", nargs=-1)
@click.option("-t", "--type", "artifact_type", type=TYPE, help="Only this type.")
@click.option("--search", metavar="TEXT", help="Only names with this in them.")
@click.option("--author", metavar="NAME", help="Only what this author has published.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Artifacts at most.")
@click.option("--quick", is_flag=True, help="Only list: no sizes, no READMEs, of hubs the usual version alone.")
@click.option(
    "--delegate-to", metavar="REGISTRY", help="Have the other installation scan this registry of its own first."
)
async def scan(api: AsyncSession, registry_name: str, quick: bool, **query: Any) -> Outcome:
    """Scan REGISTRY for artifacts, or only for the artifacts NAMES. Existing records stay as they are."""
    task_id = await api.Artifact.scan(registry_name, closely=not quick, **query)
    message = await follow_task(api, task_id, name="the scan", describe=_describe_scan)
    return {"bgtask_id": task_id, "message": message}, message


def _describe_scan(progress: Progress) -> str:
    return f"{progress.message}: {int(progress.current)} artifacts"


@admin_artifact.command("import")
@_REVISIONS_ARGUMENT
@click.option("--delegate", is_flag=True, help="The other installation is to import first what it has not.")
@click.option("--no-wait", is_flag=True, help="Do not wait until they are available.")
async def import_(api: AsyncSession, revisions: tuple[str, ...], delegate: bool, no_wait: bool) -> Outcome:
    """Import REVISIONS, each written NAME[@VERSION]. Interrupting this command leaves the import under way."""
    imported_revisions = await api.Artifact.import_revisions(revisions, delegate=delegate)
    if not no_wait:
        imported_revisions = await _wait_for_revisions(api, [revision["id"] for revision in imported_revisions])
    return imported_revisions, _format_revisions(imported_revisions)


async def _wait_for_revisions(api: AsyncSession, revision_ids: list[str], *, with_reasons: bool = True) -> Any:
    """Waits until all revisions are available; ``with_reasons`` prints what an import waits for."""
    screen, printed_reasons = screen_of(), dict[str, str]()
    with TransferBar(screen) as bar:

        def show_progress(revision: Mapping[str, Any]) -> None:
            revision_name, reason = f"{revision['artifact']}@{revision['version']}", revision["status_info"]
            is_waiting = revision["status"] in ("PULLING", "PULLED")
            if with_reasons and is_waiting and reason and reason != printed_reasons.get(revision_name):
                printed_reasons[revision_name] = reason
                bar.close()
                screen.inform(f"{revision_name}: {reason}")
            progress = revision["progress"] or {"current": 0, "total": revision["size"] or 0}
            bar.update(revision_name, progress["current"], progress["total"])

        return await run_in_event_loop(api, lambda api: api.Artifact.wait(revision_ids, progress=show_progress))


def _absolute_paths(_ctx: click.Context, _param: click.Parameter, files: tuple[str, ...]) -> list[Path]:
    return [Path(file).absolute() for file in files]


@admin_artifact.command("upload", needs_loop=True)
@_REGISTRY_ARGUMENT
@_NAME_ARGUMENT
@click.argument("version")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True), callback=_absolute_paths)
@click.option("-t", "--type", "artifact_type", type=TYPE, default="MODEL", show_default=True, help="What it is.")
@click.option(
    "-b", "--base-dir", "basedir", type=click.Path(exists=True, file_okay=False), help="What FILES are relative to."
)
@click.option("-d", "--description", default="", help="A sentence about it.")
@click.option("-j", "--parallel", type=click.IntRange(1, 32), default=4, show_default=True, help="Files at a time.")
async def upload(
    api: AsyncSession, registry_name: str, name: str, version: str, files: list[Path], **options: Any
) -> Outcome:
    """Make VERSION of the artifact NAME of FILES and directories, in the local REGISTRY."""
    with TransferBar(screen_of()) as bar:
        revision = await api.Artifact.upload(registry_name, name, version, files, progress=bar.update, **options)
    uploaded_revisions = await _wait_for_revisions(api, [revision["id"]], with_reasons=False)
    return uploaded_revisions, _format_revisions(uploaded_revisions)


@admin_artifact.command("share")
@_NAME_ARGUMENT
@click.argument("viewers", nargs=-1)
@click.option("--nobody", is_flag=True, help="Only superadmins and monitors may use it.")
@click.option("--reset", is_flag=True, help="Let its registry say who may use it, and the hub if it is restricted.")
def share(name: str, viewers: tuple[str, ...], nobody: bool, reset: bool) -> None:
    """Set who may use an artifact: VIEWERS are everyone, domain:NAME, group:NAME or user:EMAIL."""
    if bool(viewers) + nobody + reset != 1:
        raise click.UsageError("give VIEWERS, --nobody or --reset")
    change_object(
        lambda api: api.Artifact.change(name, viewers=None if reset else viewers),
        {"changed": name},
        f"changed who may use {name}",
    )


@admin_artifact.command("install")
@click.argument("revision")
@click.option("-a", "--agents", default="*", show_default=True, help="An id, a pattern, group:NAME; commas for more.")
@click.option("-i", "--image", help="Name of the image  [default: that of the artifact, with the version as its tag]")
async def install(api: AsyncSession, revision: str, agents: str, image: str | None) -> Outcome:
    """Make an image of REVISION, an available IMAGE artifact, on agents; sessions can then run on it."""
    task_id = await api.Artifact.install(revision, agents, image)
    message = await follow_task(api, task_id, name="the installation")
    return {"bgtask_id": task_id, "message": message}, message


@admin_artifact.command("cancel")
@_REVISIONS_ARGUMENT
def cancel(revisions: tuple[str, ...]) -> None:
    """End imports that are under way; fetched files are removed."""
    print_reply(lambda api: api.Artifact.cancel(revisions), _format_revisions)


@admin_artifact.command("cleanup")
@_REVISIONS_ARGUMENT
def cleanup(revisions: tuple[str, ...]) -> None:
    """Remove the files of REVISIONS and keep the records. Refused while a session mounts a revision."""
    print_reply(lambda api: api.Artifact.cleanup(revisions), _format_revisions)


@admin_artifact.command("delete")
@_NAME_ARGUMENT
def delete(name: str) -> None:
    """Forget an artifact until the next scan. Refused while files of the artifact are stored."""
    change_object(lambda api: api.Artifact.delete(name), {"deleted": name}, f"deleted {name}")
