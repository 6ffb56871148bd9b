"""Files of a session: upload, download, ls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import LeafCommand, ListCommand, screen_of
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.values import iso_time, readable_size
from ai.backend.cli.session.commands import owner_option

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from ai.backend.cli.framework.lazy import Outcome
    from ai.backend.client.func.session import AsyncComputeSession
    from ai.backend.client.session import AsyncSession


async def upload_files(
    session: AsyncComputeSession, files: Sequence[str | Path], basedir: str | os.PathLike[str] | None
) -> None:
    """Puts files into the home of a session. Raises BackendClientError if a file is too large.

    The message names the largest file and other ways to bring it into the session.
    """
    from ai.backend.client.exceptions import BackendAPIError, BackendClientError

    try:
        await session.upload(files, basedir)
    except BackendAPIError as error:
        if "larger than" not in str(error):
            raise
        largest_file, size_bytes = _find_largest(files)
        raise BackendClientError(
            f"{error}; the largest is {largest_file} with {readable_size(size_bytes)}: copy it by "
            f"`backend.ai scp {session.name} {largest_file} :`, or put it into a folder "
            "(`backend.ai vfolder upload`) that the session mounts"
        ) from None


def _find_largest(files: Sequence[str | Path]) -> tuple[str, int]:
    return max(((str(file), Path(file).stat().st_size) for file in files), key=lambda item: item[1])


@click.command(cls=LeafCommand, needs_loop=True)
@click.argument("session")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("-b", "--basedir", type=click.Path(exists=True, file_okay=False), help="What FILES are relative to.")
@owner_option
async def upload(
    api: AsyncSession, session: str, files: tuple[str, ...], basedir: str | None, owner: str | None
) -> Outcome:
    """Put FILES into the home of SESSION, at their relative paths."""
    await upload_files(api.ComputeSession(session, owner), files, basedir)
    return {"uploaded": list(files)}, "\n".join(f"uploaded {file}" for file in files)


@click.command(cls=LeafCommand, needs_loop=True)
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
        screen.print_json(files)
        return
    rows: list[dict[str, Any]] = [
        {**file, "size": readable_size(int(file["size"])), "mtime": iso_time(file["mtime"])} for file in files
    ]
    screen.print_rows(rows, columns("mode | size/number | mtime/time: Modified | filename: Name"), f"{path} is empty")
