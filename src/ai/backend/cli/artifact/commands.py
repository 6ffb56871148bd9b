"""`backend.ai artifact`: what everybody does with artifacts (spec 03-17)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.artifact.group import STATUS, TYPE, artifact, command, list_command, size_of
from ai.backend.cli.framework.invoke import call
from ai.backend.cli.framework.lazy import screen_of
from ai.backend.cli.framework.objects import list_them, print_reply
from ai.backend.cli.framework.output import Column
from ai.backend.cli.framework.printing import print_result
from ai.backend.cli.framework.progress import TransferBar
from ai.backend.cli.framework.values import readable_size, short_id

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

__all__ = ["artifact"]
COLUMNS = [
    Column("name", "Name"),
    Column("version", "Version"),
    Column("type", "Type"),
    Column("registry", "Registry"),
    Column("status", "Status"),
    Column("size", "Size", is_number=True),
]


@list_command("list")
@click.option("-t", "--type", "artifact_type", type=TYPE, help="Only this type.")
@click.option("-r", "--registry", metavar="NAME", help="Only what comes from this registry.")
@click.option("-s", "--status", type=STATUS, help="Only artifacts with a revision in this status.")
@click.option("--search", metavar="TEXT", help="Only names with this in them.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Artifacts on a page.")
@click.option("--offset", type=click.IntRange(0), default=0, show_default=True, help="Where the page begins.")
def list_(**query: Any) -> None:
    """List artifacts with their revisions. Most users see what is available only."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        page = await api.Artifact.list(**query)
        if screen.is_json:
            screen.json(page)
            return
        rows = [
            {**item, **revision, "size": size_of(revision)} for item in page["items"] for revision in item["revisions"]
        ]
        if rows:
            screen.table(rows, COLUMNS)
        shown = len(page["items"])
        if not shown:
            screen.inform("there are no such artifacts")
        elif query["offset"] + shown < page["total_count"]:
            screen.inform(f"{shown} of {page['total_count']} artifacts; go on with --offset {query['offset'] + shown}")

    call(screen, work)


@list_command("info")
@click.argument("name")
@click.option("--readme", is_flag=True, help="Print its README only.")
def info(name: str, readme: bool) -> None:
    """Show an artifact and its revisions. NAME may be its id."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        detail = await api.Artifact.info(name)
        if screen.is_json:
            screen.json(detail)
            return
        if readme:
            print_result(screen, None, (detail["readme"] or "").rstrip())
            return
        screen.facts(
            [
                ("Name", detail["name"]),
                ("Type", detail["type"]),
                ("Registry", f"{detail['registry']} ({detail['registry_type']})"),
                ("Description", detail["description"]),
                ("ID", detail["id"]),
                ("Scanned", detail["scanned_at"]),
            ]
        )
        rows = [{**revision, "size": size_of(revision)} for revision in detail["revisions"]]
        columns = [
            Column("version", "Version"),
            Column("status", "Status"),
            Column("size", "Size", is_number=True),
            Column("file_count", "Files", is_number=True),
            Column("is_outdated", "Outdated", is_wide=True),
            Column("status_info", "Note"),
            Column("id", "ID", is_wide=True),
        ]
        if rows:
            screen.table(rows, columns)

    call(screen, work)


@list_command("files")
@click.argument("revision")
def files(revision: str) -> None:
    """List the files of an available REVISION, written NAME[@VERSION]."""
    list_them(
        lambda api: api.Artifact.files(revision),
        [Column("size", "Size", is_number=True), Column("sha256", "SHA-256", short_id), Column("path", "Path")],
        "it has no files",
        describe=lambda file: {**file, "size": readable_size(file["size"])},
    )


@command("download")
@click.argument("revision")
@click.argument("paths", nargs=-1)
@click.option(
    "-b", "--base-dir", type=click.Path(file_okay=False), default=".", show_default=True, help="Where to put."
)
@click.option("-j", "--parallel", type=click.IntRange(1, 32), default=4, show_default=True, help="Files at a time.")
def download(revision: str, paths: tuple[str, ...], base_dir: str, parallel: int) -> None:
    """Fetch files of an available REVISION, all of them if no PATHS are named. What was broken off goes on."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        with TransferBar(screen) as bar:
            written = await api.Artifact.download(
                revision, paths, basedir=base_dir, parallel=parallel, progress=bar.update
            )
        names = [str(path) for path in written]
        print_result(screen, {"downloaded": names}, "\n".join(f"downloaded {name}" for name in names))

    call(screen, work)


@command("presign")
@click.argument("revision")
@click.argument("paths", nargs=-1)
def presign(revision: str, paths: tuple[str, ...]) -> None:
    """Print URLs by which anybody can fetch files of an available REVISION, until they expire."""
    print_reply(
        lambda api: api.Artifact.presign(revision, paths),
        lambda links: "\n".join(str(link["url"]) for link in links),
    )
