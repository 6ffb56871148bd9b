"""Files of a session: upload, download, ls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import Leaf, ListCommand, screen_of
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.values import iso_time, readable_size
from ai.backend.cli.session.commands import owner_option

if TYPE_CHECKING:
    from ai.backend.cli.framework.lazy import Outcome
    from ai.backend.client.session import AsyncSession


@click.command(cls=Leaf)
@click.argument("session")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("-b", "--basedir", type=click.Path(exists=True, file_okay=False), help="What FILES are relative to.")
@owner_option
async def upload(
    api: AsyncSession, session: str, files: tuple[str, ...], basedir: str | None, owner: str | None
) -> Outcome:
    """Put FILES into the home of SESSION, at their relative paths."""
    await api.ComputeSession(session, owner).upload(files, basedir)
    return {"uploaded": list(files)}, "\n".join(f"uploaded {file}" for file in files)


@click.command(cls=Leaf)
@click.argument("session")
@click.argument("files", nargs=-1, required=True)
@click.option("--dest", type=click.Path(file_okay=False), default=".", show_default=True, help="Where to put them.")
@owner_option
async def download(api: AsyncSession, session: str, files: tuple[str, ...], dest: str, owner: str | None) -> Outcome:
    """Fetch FILES from the home of SESSION."""
    written_paths = await api.ComputeSession(session, owner).download(files, dest)
    return {"downloaded": list(map(str, written_paths))}, "\n".join(f"downloaded {path}" for path in written_paths)


@click.command(cls=ListCommand)
@click.argument("session")
@click.argument("path", default=".")
@owner_option
async def ls(api: AsyncSession, session: str, path: str, owner: str | None) -> None:
    """List the files below PATH in SESSION; its home by default."""
    screen = screen_of()
    files = await api.ComputeSession(session, owner).list_files(path)
    if screen.is_json:
        screen.json(files)
        return
    rows: list[dict[str, Any]] = [
        {**file, "size": readable_size(int(file["size"])), "mtime": iso_time(file["mtime"])} for file in files
    ]
    screen.rows(rows, columns("mode | size/number | mtime/time: Modified | filename: Name"), f"{path} is empty")
