"""Files of a session: upload, download, ls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.invoke import call
from ai.backend.cli.framework.lazy import Leaf, ListCommand, screen_of
from ai.backend.cli.framework.output import Column
from ai.backend.cli.framework.values import iso_time, readable_size, relative_time
from ai.backend.cli.session.commands import owner_option

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession


@click.command(cls=Leaf)
@click.argument("session")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("-b", "--basedir", type=click.Path(exists=True, file_okay=False), help="What FILES are relative to.")
@owner_option
def upload(session: str, files: tuple[str, ...], basedir: str | None, owner: str | None) -> None:
    """Put FILES into the home of SESSION, at their relative paths."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        await api.ComputeSession(session, owner).upload(files, basedir)
        if screen.is_json:
            screen.json({"uploaded": list(files)})
        for file in files:
            screen.say(f"uploaded {file}")

    call(screen, work)


@click.command(cls=Leaf)
@click.argument("session")
@click.argument("files", nargs=-1, required=True)
@click.option("--dest", type=click.Path(file_okay=False), default=".", show_default=True, help="Where to put them.")
@owner_option
def download(session: str, files: tuple[str, ...], dest: str, owner: str | None) -> None:
    """Fetch FILES from the home of SESSION."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        written = await api.ComputeSession(session, owner).download(files, Path(dest))
        if screen.is_json:
            screen.json({"downloaded": [str(path) for path in written]})
        for path in written:
            screen.say(f"downloaded {path}")

    call(screen, work)


@click.command(cls=ListCommand)
@click.argument("session")
@click.argument("path", default=".")
@owner_option
def ls(session: str, path: str, owner: str | None) -> None:
    """List the files below PATH in SESSION; its home by default."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        files = await api.ComputeSession(session, owner).list_files(path)
        if screen.is_json:
            screen.json(files)
            return
        rows: list[dict[str, Any]] = [
            {**file, "size": readable_size(int(file["size"])), "mtime": iso_time(file["mtime"])} for file in files
        ]
        columns = [
            Column("mode", "Mode"),
            Column("size", "Size", is_number=True),
            Column("mtime", "Modified", relative_time),
            Column("filename", "Name"),
        ]
        if rows:
            screen.table(rows, columns)
        else:
            screen.inform(f"{path} is empty")

    call(screen, work)
