"""`backend.ai artifact`: what everybody does with artifacts (spec 03-17)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import LazyGroup, ListCommand, Outcome, screen_of
from ai.backend.cli.framework.objects import follow_task, list_objects
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.params import target_folder_option
from ai.backend.cli.framework.progress import TransferBar
from ai.backend.cli.framework.values import readable_size

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

artifact = LazyGroup("artifact", help="Models, packages and images that sessions can mount.")
TYPE = click.Choice(["MODEL", "PACKAGE", "IMAGE"], case_sensitive=False)
_STATUS_CHOICE = click.Choice(["SCANNED", "PULLING", "PULLED", "AVAILABLE"], case_sensitive=False)
_REVISION_ARGUMENT = click.argument("revision")
_PATHS_ARGUMENT = click.argument("paths", nargs=-1)
COLUMNS = columns("name | version | type | registry | status | size/number")
_REVISION_COLUMNS = columns(
    "version | status | size/number | file_count/number: Files | is_outdated/wide: Outdated | status_info: Note | "
    "id/wide: ID"
)


def _format_size(revision: Mapping[str, Any]) -> dict[str, Any]:
    return {**revision, "size": readable_size(revision["size"]) if revision["size"] is not None else None}


@artifact.command("list", cls=ListCommand)
@click.option("-t", "--type", "artifact_type", type=TYPE, help="Only this type.")
@click.option("-r", "--registry", metavar="NAME", help="Only what comes from this registry.")
@click.option("-s", "--status", type=_STATUS_CHOICE, help="Only artifacts with a revision in this status.")
@click.option("--search", metavar="TEXT", help="Only names with this in them.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Artifacts on a page.")
@click.option("--offset", type=click.IntRange(0), default=0, show_default=True, help="Where the page begins.")
async def list_(api: AsyncSession, **query: Any) -> None:
    """List artifacts with their revisions. Most users see available revisions only."""
    screen = screen_of()
    page = await api.Artifact.list(**query)
    if screen.is_json:
        screen.print_json(page)
        return
    rows = [{**item, **_format_size(revision)} for item in page["items"] for revision in item["revisions"]]
    if rows:
        screen.print_table(rows, COLUMNS)
    shown_count = len(page["items"])
    if not shown_count:
        screen.inform("there are no such artifacts")
    elif query["offset"] + shown_count < page["total_count"]:
        screen.inform(
            f"{shown_count} of {page['total_count']} artifacts; go on with --offset {query['offset'] + shown_count}"
        )


@artifact.command("info", cls=ListCommand)
@click.argument("name")
@click.option("--readme", is_flag=True, help="Print its README only.")
async def info(api: AsyncSession, name: str, readme: bool) -> Outcome:
    """Show an artifact and its revisions. NAME may be its id."""
    screen = screen_of()
    detail = await api.Artifact.info(name)
    if readme or screen.is_json:
        return detail, (detail["readme"] or "").rstrip()
    screen.print_facts(
        [
            ("Name", detail["name"]),
            ("Type", detail["type"]),
            ("Registry", f"{detail['registry']} ({detail['registry_type']})"),
            ("Description", detail["description"]),
            ("ID", detail["id"]),
            ("Scanned", detail["scanned_at"]),
            ("Restricted", "yes" if detail["restricted"] else "no"),
        ]
    )
    if detail["revisions"]:
        screen.print_table(map(_format_size, detail["revisions"]), _REVISION_COLUMNS)
    return None


@artifact.command("import")
@click.argument("registry")
@click.argument("name")
async def import_(api: AsyncSession, registry: str, name: str) -> Outcome:
    """Import NAME[@VERSION] from REGISTRY, where an administrator has allowed it to users.

    The default version is main; data sets of a hub are called datasets/OWNER/NAME. Then mount it: `run -m
    artifact:NAME`.
    """
    artifact_name, _, version = name.partition("@")
    task_id = await api.Artifact.fetch(registry, artifact_name, version or None)
    message = await follow_task(api, task_id, name="the import")
    return {"bgtask_id": task_id, "message": message}, message


@artifact.command("files", cls=ListCommand)
@_REVISION_ARGUMENT
def files(revision: str) -> None:
    """List the files of an available REVISION, written NAME[@VERSION]."""
    file_columns = columns("size/number | sha256/short: SHA-256 | path")
    list_objects(lambda api: api.Artifact.files(revision), file_columns, "it has no files", describe=_format_size)


@artifact.command("download", needs_loop=True)
@_REVISION_ARGUMENT
@_PATHS_ARGUMENT
@target_folder_option
@click.option("-j", "--parallel", type=click.IntRange(1, 32), default=4, show_default=True, help="Files at a time.")
async def download(api: AsyncSession, revision: str, paths: tuple[str, ...], **options: Any) -> Outcome:
    """Fetch files of an available REVISION, all of them if no PATHS are named. A broken-off download goes on."""
    with TransferBar(screen_of()) as bar:
        written_paths = await api.Artifact.download(revision, paths, progress=bar.update, **options)
    return {"downloaded": list(map(str, written_paths))}, "\n".join(f"downloaded {path}" for path in written_paths)


@artifact.command("presign")
@_REVISION_ARGUMENT
@_PATHS_ARGUMENT
async def presign(api: AsyncSession, revision: str, paths: tuple[str, ...]) -> Outcome:
    """Print URLs by which anybody can fetch files of an available REVISION, until they expire."""
    file_links = await api.Artifact.presign(revision, paths)
    return file_links, "\n".join(str(file_link["url"]) for file_link in file_links)
