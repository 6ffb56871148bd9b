"""Files in virtual folders: ls, mkdir, mv, rm, upload, download."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.calling import call
from ai.backend.cli.lazy import screen_of
from ai.backend.cli.transfer_bar import TransferBar, readable_size
from ai.backend.cli.vfolder_group import command, show, tell, vfolder

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession


@command("ls")
@click.argument("name")
@click.argument("path", default=".")
def ls(name: str, path: str) -> None:
    """List the files at PATH in the folder NAME."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        files = await api.VFolder(name).list_files(path)
        if screen.is_json:
            screen.json(files)
            return
        from datetime import UTC, datetime

        rows = [
            {
                **file,
                "name": file["name"] + ("/" if file.get("type") == "DIRECTORY" else ""),
                "size": readable_size(int(file["size"])),
                "modified": f"{datetime.fromtimestamp(float(file['modified']), UTC):%Y-%m-%d %H:%M:%S}Z",
            }
            for file in files
        ]
        columns = [("mode", "Mode"), ("size", "Size"), ("modified", "Modified"), ("name", "Name")]
        show(screen, rows, columns, f"{path} is empty")

    call(screen, work)


@command("mkdir")
@click.argument("name")
@click.argument("paths", nargs=-1, required=True)
@click.option("-p", "--parents", is_flag=True, help="Make what is above it too.")
@click.option("-e", "--exist-ok", is_flag=True, help="It may be there already.")
def mkdir(name: str, paths: tuple[str, ...], parents: bool, exist_ok: bool) -> None:
    """Make directories in the folder NAME."""
    screen = screen_of()

    async def work(api: AsyncSession) -> int:
        results = await api.VFolder(name).mkdir(paths, parents=parents, exist_ok=exist_ok)
        if screen.is_json:
            screen.json(results)
        for made in results["success"]:
            screen.say(f"made {made['item']}")
        for failed in results["failed"]:
            screen.note(f"cannot make {failed['item']}: {failed['msg']}")
        return 1 if results["failed"] else 0

    call(screen, work)


@command("rename-file")
@click.argument("name")
@click.argument("target_path")
@click.argument("new_name")
def rename_file(name: str, target_path: str, new_name: str) -> None:
    """Give a file or directory in the folder NAME another name."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        await api.VFolder(name).rename_file(target_path, new_name)
        tell(screen, {"renamed": target_path}, f"renamed {target_path} to {new_name}")

    call(screen, work)


@command("mv")
@click.argument("name")
@click.argument("src")
@click.argument("dst")
def mv(name: str, src: str, dst: str) -> None:
    """Move a file or directory inside of the folder NAME; into DST if that is a directory."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        await api.VFolder(name).move_file(src, dst)
        tell(screen, {"moved": src}, f"moved {src} to {dst}")

    call(screen, work)


@command("rm")
@click.argument("name")
@click.argument("paths", nargs=-1, required=True)
@click.option("-r", "--recursive", is_flag=True, help="Directories too, with all that is in them.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def rm(name: str, paths: tuple[str, ...], recursive: bool, yes: bool) -> None:
    """Delete files in the folder NAME, for ever."""
    screen = screen_of()
    if not yes and not screen.is_json and sys.stdin.isatty():
        click.confirm(f"Delete {', '.join(paths)} from {name} for ever?", abort=True, err=True)

    async def work(api: AsyncSession) -> None:
        await api.VFolder(name).delete_files(paths, recursive=recursive)
        tell(screen, {"deleted": list(paths)}, "\n".join(f"deleted {path}" for path in paths))

    call(screen, work)


vfolder.add_command(rm, "delete-file")


@command("upload")
@click.argument("name")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("-b", "--base-dir", type=click.Path(exists=True, file_okay=False), help="What FILES are relative to.")
@click.option("-d", "--dst-dir", metavar="PATH", help="Where in the folder they go.")
@click.option("-r", "--recursive", is_flag=True, help="Directories too.")
@click.option("--chunk-size", type=click.IntRange(1), default=16, show_default=True, help="MiB sent at a time.")
@click.option("-j", "--parallel", type=click.IntRange(1, 32), default=4, show_default=True, help="Files at a time.")
@click.option("--no-resume", is_flag=True, help="Begin anew, also what was broken off before.")
def upload(
    name: str, files: tuple[str, ...], base_dir: str | None, chunk_size: int, no_resume: bool, **options: Any
) -> None:
    """Put FILES into the folder NAME, at their relative paths. What was broken off goes on where it was."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        with TransferBar(screen) as bar:
            sent = await api.VFolder(name).upload(
                files,
                basedir=base_dir,
                chunk_size=chunk_size << 20,
                resume=not no_resume,
                progress=bar.update,
                **options,
            )
        tell(screen, {"uploaded": sent}, "\n".join(f"uploaded {path}" for path in sent))

    call(screen, work)


@command("download")
@click.argument("name")
@click.argument("paths", nargs=-1, required=True)
@click.option(
    "-b", "--base-dir", type=click.Path(file_okay=False), default=".", show_default=True, help="Where to put."
)
@click.option("-r", "--recursive", is_flag=True, help="Directories too.")
@click.option("--archive", type=click.Path(dir_okay=False), help="Fetch one directory as this zip file instead.")
@click.option("-j", "--parallel", type=click.IntRange(1, 32), default=4, show_default=True, help="Files at a time.")
def download(
    name: str, paths: tuple[str, ...], base_dir: str, recursive: bool, archive: str | None, parallel: int
) -> None:
    """Fetch files of the folder NAME, to their relative paths. What was broken off goes on where it was."""
    screen = screen_of()
    if archive is not None and len(paths) != 1:
        raise click.UsageError("--archive takes one directory")

    async def work(api: AsyncSession) -> None:
        folder = api.VFolder(name)
        with TransferBar(screen) as bar:
            if archive is not None:
                written = [await folder.download_archive(paths[0], archive, progress=bar.update)]
            else:
                written = await folder.download(
                    paths, basedir=base_dir, recursive=recursive, parallel=parallel, progress=bar.update
                )
        told = [str(Path(path)) for path in written]
        tell(screen, {"downloaded": told}, "\n".join(f"downloaded {path}" for path in told))

    call(screen, work)


@command("request-download")
@click.argument("name")
@click.argument("path")
def request_download(name: str, path: str) -> None:
    """Print a URL by which anybody can fetch the file at PATH, until it expires."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        ticket = await api.VFolder(name).request_download(path)
        tell(screen, {"url": ticket.url, "token": ticket.token}, str(ticket.target))

    call(screen, work)


@command("cp")
@click.argument("files", nargs=-1, required=True, metavar="FILE... TARGET")
@click.option("-r", "--recursive", is_flag=True, help="Directories too.")
def cp(files: tuple[str, ...], recursive: bool) -> None:
    """Copy files into a folder or out of it, as scp does.

    \b
      backend.ai vfolder cp big.csv mydata1:            into the folder mydata1
      backend.ai vfolder cp mydata1:out/result.txt .    and out of it
    """
    *sources, target = files
    if not sources:
        raise click.UsageError("say what to copy, and where")
    screen = screen_of()
    into, below = _split(target)
    remote, local = [_split(source) for source in sources], [Path(source).absolute() for source in sources]
    if into is not None and all(folder is None for folder, _ in remote):
        name = into

        async def work(api: AsyncSession) -> None:
            with TransferBar(screen) as bar:
                sent: list[str] = []
                for path in local:
                    sent += await api.VFolder(name).upload(
                        [path], basedir=path.parent, dst_dir=below or None, recursive=recursive, progress=bar.update
                    )
            tell(screen, {"uploaded": sent}, "\n".join(f"uploaded {path}" for path in sent))

    elif into is None and all(folder is not None for folder, _ in remote):

        async def work(api: AsyncSession) -> None:
            with TransferBar(screen) as bar:
                written: list[Path] = []
                for folder, path in remote:
                    written += await api.VFolder(str(folder)).download(
                        [path], basedir=target, recursive=recursive, progress=bar.update
                    )
            told = [str(path) for path in written]
            tell(screen, {"downloaded": told}, "\n".join(f"downloaded {path}" for path in told))

    else:
        raise click.UsageError("either all sources or the target are in a folder, written NAME:PATH")
    call(screen, work)


def _split(text: str) -> tuple[str | None, str]:
    """``NAME:PATH`` as both; a local path as None and itself."""
    name, colon, path = text.partition(":")
    return (name, path) if colon and "/" not in name else (None, text)
