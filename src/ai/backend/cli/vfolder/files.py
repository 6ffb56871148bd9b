"""Files in virtual folders: ls, mkdir, mv, rm, upload, download."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.confirmation import confirm, yes_option
from ai.backend.cli.framework.invoke import call
from ai.backend.cli.framework.lazy import screen_of
from ai.backend.cli.framework.output import Column
from ai.backend.cli.framework.printing import print_result, print_rows
from ai.backend.cli.framework.progress import TransferBar
from ai.backend.cli.framework.values import iso_time, readable_size, relative_time
from ai.backend.cli.vfolder.group import change_folder, command, list_command, open_folder, vfolder

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession


@list_command("ls")
@click.argument("name")
@click.argument("path", default=".")
def ls(name: str, path: str) -> None:
    """List the files at PATH in the folder NAME."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        files = await (await open_folder(api, name)).list_files(path)
        if screen.is_json:
            screen.json(files)
            return
        rows = [
            {
                **file,
                "name": file["name"] + ("/" if file.get("type") == "DIRECTORY" else ""),
                "size": readable_size(int(file["size"])),
                "modified": iso_time(file["modified"]),
            }
            for file in files
        ]
        columns = [
            Column("mode", "Mode"),
            Column("size", "Size", is_number=True),
            Column("modified", "Modified", relative_time),
            Column("name", "Name"),
        ]
        print_rows(screen, rows, columns, f"{path} is empty")

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
        results = await (await open_folder(api, name)).mkdir(paths, parents=parents, exist_ok=exist_ok)
        if screen.is_json:
            screen.json(results)
        for made in results["success"]:
            screen.say(f"made {made['item']}")
        for failed in results["failed"]:
            screen.inform(f"cannot make {failed['item']}: {failed['msg']}")
        return 1 if results["failed"] else 0

    call(screen, work)


@command("rename-file")
@click.argument("name")
@click.argument("target_path")
@click.argument("new_name")
def rename_file(name: str, target_path: str, new_name: str) -> None:
    """Give a file or directory in the folder NAME another name."""
    text = f"renamed {target_path} to {new_name}"
    change_folder(name, lambda folder: folder.rename_file(target_path, new_name), {"renamed": target_path}, text)


@command("mv")
@click.argument("name")
@click.argument("src")
@click.argument("dst")
def mv(name: str, src: str, dst: str) -> None:
    """Move a file or directory inside of the folder NAME; into DST if that is a directory."""
    change_folder(name, lambda folder: folder.move_file(src, dst), {"moved": src}, f"moved {src} to {dst}")


@command("rm")
@click.argument("name")
@click.argument("paths", nargs=-1, required=True)
@click.option("-r", "--recursive", is_flag=True, help="Directories too, with all that is in them.")
@yes_option
def rm(name: str, paths: tuple[str, ...], recursive: bool, yes: bool) -> None:
    """Delete files in the folder NAME for good."""
    confirm(f"Delete {', '.join(paths)} from {name} for good", is_confirmed=yes)
    text = "\n".join(f"deleted {path}" for path in paths)
    change_folder(name, lambda folder: folder.delete_files(paths, recursive=recursive), {"deleted": list(paths)}, text)


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
            sent = await (await open_folder(api, name)).upload(
                files,
                basedir=base_dir,
                chunk_size=chunk_size << 20,
                resume=not no_resume,
                progress=bar.update,
                **options,
            )
        print_result(screen, {"uploaded": sent}, "\n".join(f"uploaded {path}" for path in sent))

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
        folder = await open_folder(api, name)
        with TransferBar(screen) as bar:
            if archive is not None:
                written = [await folder.download_archive(paths[0], archive, progress=bar.update)]
            else:
                written = await folder.download(
                    paths, basedir=base_dir, recursive=recursive, parallel=parallel, progress=bar.update
                )
        names = [str(Path(path)) for path in written]
        print_result(screen, {"downloaded": names}, "\n".join(f"downloaded {name}" for name in names))

    call(screen, work)


@command("request-download")
@click.argument("name")
@click.argument("path")
def request_download(name: str, path: str) -> None:
    """Print a URL by which anybody can fetch the file at PATH, until it expires."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        ticket = await (await open_folder(api, name)).request_download(path)
        print_result(screen, {"url": ticket.url, "token": ticket.token}, str(ticket.target))

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
                    sent += await (await open_folder(api, name)).upload(
                        [path], basedir=path.parent, dst_dir=below or None, recursive=recursive, progress=bar.update
                    )
            print_result(screen, {"uploaded": sent}, "\n".join(f"uploaded {path}" for path in sent))

    elif into is None and all(folder is not None for folder, _ in remote):

        async def work(api: AsyncSession) -> None:
            with TransferBar(screen) as bar:
                written: list[Path] = []
                for folder, path in remote:
                    written += await (await open_folder(api, str(folder))).download(
                        [path], basedir=target, recursive=recursive, progress=bar.update
                    )
            names = [str(path) for path in written]
            print_result(screen, {"downloaded": names}, "\n".join(f"downloaded {name}" for name in names))

    else:
        raise click.UsageError("either all sources or the target are in a folder, written NAME:PATH")
    call(screen, work)


def _split(text: str) -> tuple[str | None, str]:
    """``NAME:PATH`` as both; a local path as None and itself."""
    name, colon, path = text.partition(":")
    return (name, path) if colon and "/" not in name else (None, text)
