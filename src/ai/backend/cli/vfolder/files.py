"""Files in virtual folders: ls, mkdir, mv, rm, upload, download, cp."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import ListCommand, Outcome, screen_of
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.params import confirm, options, target_folder_option, yes_option
from ai.backend.cli.framework.progress import TransferBar
from ai.backend.cli.framework.values import iso_time, readable_size
from ai.backend.cli.vfolder.group import FOLDER_NAME, change_folder, open_folder, vfolder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ai.backend.client.func.vfolder import AsyncVFolder
    from ai.backend.client.session import AsyncSession

_PATHS_ARGUMENT = click.argument("paths", nargs=-1, required=True)
_transfer_options = options(
    click.option("-r", "--recursive", is_flag=True, help="Directories too."),
    click.option("-j", "--parallel", type=click.IntRange(1, 32), default=4, show_default=True, help="Files at a time."),
)


def _upload_outcome(paths: Sequence[str]) -> Outcome:
    return {"uploaded": list(paths)}, "\n".join(f"uploaded {path}" for path in paths)


def _download_outcome(paths: Sequence[Path]) -> Outcome:
    return {"downloaded": list(map(str, paths))}, "\n".join(f"downloaded {path}" for path in paths)


@vfolder.command("ls", cls=ListCommand)
@FOLDER_NAME
@click.argument("path", default=".")
async def ls(api: AsyncSession, name: str, path: str) -> None:
    """List the files at PATH in the folder NAME."""
    screen = screen_of()
    files = await (await open_folder(api, name)).list_files(path)
    if screen.is_json:
        screen.print_json(files)
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
    screen.print_rows(rows, columns("mode | size/number | modified/time | name"), f"{path} is empty")


@vfolder.command("mkdir")
@FOLDER_NAME
@_PATHS_ARGUMENT
@click.option("-p", "--parents", is_flag=True, help="Make what is above it too.")
@click.option("-e", "--exist-ok", is_flag=True, help="It may be there already.")
async def mkdir(api: AsyncSession, name: str, paths: tuple[str, ...], **flags: bool) -> int:
    """Make directories in the folder NAME."""
    screen = screen_of()
    results = await (await open_folder(api, name)).mkdir(paths, **flags)
    if screen.is_json:
        screen.print_json(results)
    for created_entry in results["success"]:
        screen.print_line(f"made {created_entry['item']}")
    for failure in results["failed"]:
        screen.inform(f"cannot make {failure['item']}: {failure['msg']}")
    return 1 if results["failed"] else 0


@vfolder.command("rename-file")
@FOLDER_NAME
@click.argument("target_path")
@click.argument("new_name")
def rename_file(name: str, target_path: str, new_name: str) -> None:
    """Give a file or directory in the folder NAME another name."""
    result_text = f"renamed {target_path} to {new_name}"
    change_folder(name, lambda folder: folder.rename_file(target_path, new_name), {"renamed": target_path}, result_text)


@vfolder.command("mv")
@FOLDER_NAME
@click.argument("src")
@click.argument("dst")
def mv(name: str, src: str, dst: str) -> None:
    """Move a file or directory inside of the folder NAME; into DST if that is a directory."""
    change_folder(name, lambda folder: folder.move_file(src, dst), {"moved": src}, f"moved {src} to {dst}")


@vfolder.command("rm")
@FOLDER_NAME
@_PATHS_ARGUMENT
@click.option("-r", "--recursive", is_flag=True, help="Directories too, with all that is in them.")
@yes_option
def rm(name: str, paths: tuple[str, ...], recursive: bool, yes: bool) -> None:
    """Delete files in the folder NAME for good."""
    confirm(f"Delete {', '.join(paths)} from {name} for good", is_confirmed=yes)
    result_text = "\n".join(f"deleted {path}" for path in paths)
    change_folder(
        name, lambda folder: folder.delete_files(paths, recursive=recursive), {"deleted": list(paths)}, result_text
    )


vfolder.add_command(rm, "delete-file")


@vfolder.command("upload", needs_loop=True)
@FOLDER_NAME
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True))
@click.option(
    "-b", "--base-dir", "basedir", type=click.Path(exists=True, file_okay=False), help="What FILES are relative to."
)
@click.option("-d", "--dst-dir", metavar="PATH", help="Where in the folder they go.")
@_transfer_options
@click.option("--chunk-size", type=click.IntRange(1), default=16, show_default=True, help="MiB sent at a time.")
@click.option("--no-resume", is_flag=True, help="Begin anew, also what was broken off before.")
async def upload(
    api: AsyncSession, name: str, files: tuple[str, ...], chunk_size: int, no_resume: bool, **props: Any
) -> Outcome:
    """Put FILES into the folder NAME, at their relative paths. A broken-off upload goes on."""
    props |= {"chunk_size": chunk_size << 20, "resume": not no_resume}
    with TransferBar(screen_of()) as bar:
        return _upload_outcome(await (await open_folder(api, name)).upload(files, progress=bar.update, **props))


@vfolder.command("download", needs_loop=True)
@FOLDER_NAME
@_PATHS_ARGUMENT
@target_folder_option
@_transfer_options
@click.option("--archive", type=click.Path(dir_okay=False), help="Fetch one directory as this zip file instead.")
async def download(api: AsyncSession, name: str, paths: tuple[str, ...], archive: str | None, **props: Any) -> Outcome:
    """Fetch files of the folder NAME, to their relative paths. A broken-off download goes on."""
    if archive is not None and len(paths) != 1:
        raise click.UsageError("--archive takes one directory")
    folder = await open_folder(api, name)
    with TransferBar(screen_of()) as bar:
        if archive is not None:
            return _download_outcome([await folder.download_archive(paths[0], archive, progress=bar.update)])
        return _download_outcome(await folder.download(paths, progress=bar.update, **props))


@vfolder.command("request-download")
@FOLDER_NAME
@click.argument("path")
async def request_download(api: AsyncSession, name: str, path: str) -> Outcome:
    """Print a URL by which anybody can fetch the file at PATH, until it expires."""
    ticket = await (await open_folder(api, name)).request_download(path)
    return {"url": ticket.url, "token": ticket.token}, str(ticket.target)


@vfolder.command("cp", needs_loop=True)
@click.argument("files", nargs=-1, required=True, metavar="FILE... TARGET")
@click.option("-r", "--recursive", is_flag=True, help="Directories too.")
async def cp(api: AsyncSession, files: tuple[str, ...], recursive: bool) -> Outcome:
    """Copy files into a folder or out of it, as scp does: into TARGET if that is a directory, else to its path.

    \b
      backend.ai vfolder cp big.csv mydata1:            into the folder mydata1
      backend.ai vfolder cp mydata1:out/result.txt .    and out of it
    """
    *sources, target = files
    if not sources:
        raise click.UsageError("say what to copy, and where")
    target_folder, target_path = _split_remote_path(target)
    split_sources = [_split_remote_path(source) for source in sources]
    with TransferBar(screen_of()) as bar:
        options: dict[str, Any] = {"recursive": recursive, "progress": bar.update}
        if target_folder is not None and all(folder is None for folder, _ in split_sources):
            destination = await open_folder(api, target_folder)
            return _upload_outcome(
                await _copy_into_folder(destination, [Path(path) for path in sources], target_path, options)
            )
        if target_folder is None and all(folder is not None for folder, _ in split_sources):
            copied_paths: list[Path] = []
            goes_into_directory = len(sources) > 1 or target.endswith("/") or Path(target).is_dir()  # noqa: ASYNC240  # one look
            for folder, source_path in split_sources:
                path = PurePosixPath(source_path.strip("/"))
                stripped_prefix = path.parent if goes_into_directory else path
                source = await open_folder(api, str(folder))
                copied_paths += await source.download(
                    [str(path)], basedir=target, strip=str(stripped_prefix), **options
                )
            return _download_outcome(copied_paths)
    raise click.UsageError("either all sources or the target are in a folder, written NAME:PATH")


async def _copy_into_folder(
    folder: AsyncVFolder, sources: list[Path], target_path: str, options: dict[str, Any]
) -> list[str]:
    """Copies local files into the directory ``target_path`` of a folder, or a single one to that path."""
    goes_into_directory = len(sources) > 1 or target_path.endswith("/") or await folder.is_directory(target_path)
    copied_paths: list[str] = []
    for path in (source.absolute() for source in sources):
        basedir = path.parent if goes_into_directory else path
        copied_paths += await folder.upload([path], basedir=basedir, dst_dir=target_path or None, **options)
    return copied_paths


def _split_remote_path(text: str) -> tuple[str | None, str]:
    """Splits ``NAME:PATH``; returns None and the text for a local path."""
    name, separator, path = text.partition(":")
    return (name, path) if separator and "/" not in name else (None, text)
