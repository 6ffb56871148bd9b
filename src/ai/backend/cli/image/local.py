"""`backend.ai image`: root file systems as images of the process runtime, on the computer of the agent.

The agent finds new images at its next check, a second later (its setting ``intervals.images``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ai.backend.cli.framework.lazy import LazyGroup, ListCommand, screen_of
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.params import options

image = LazyGroup("image", help="Root file systems as images of the process runtime.")
_DIRECTORY_TYPE = click.Path(file_okay=False, path_type=Path)
_location_options = options(
    click.option("-d", "--data-dir", type=_DIRECTORY_TYPE, help="The one of `backend.ai up`."),
    click.option("--images", type=_DIRECTORY_TYPE, help="The images directory of one agent instead."),
)


def _image_folders(data_dir: Path | None, images: Path | None) -> list[Path]:
    """Returns ``images`` if given, otherwise the image directory of every agent of an embedded cluster."""
    if images is not None:
        return [images]
    from ai.backend.infra.files import default_data_dir

    data_root = data_dir or default_data_dir()
    agent_folders = sorted(path for path in (data_root / "agents").glob("*") if path.is_dir())
    if not agent_folders:
        screen_of().fail(
            f"there is no cluster in {data_root}: start it with `backend.ai up`, or give --data-dir or --images"
        )
    return [agent_folder / "process" / "images" for agent_folder in agent_folders]


@image.command("import")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("name")
@_location_options
def import_(source: Path, name: str, data_dir: Path | None, images: Path | None) -> None:
    """Import SOURCE as the image NAME, such as debian:12.

    SOURCE is the root directory of a system, a tar archive of one, an archive of `docker save`, or an OCI layout.
    """
    from ai.backend.common.errors import BackendError
    from ai.backend.runtime.process.rootfs import import_image

    screen = screen_of()
    documents: list[dict[str, Any]] = []
    try:
        for folder in _image_folders(data_dir, images):
            folder.mkdir(parents=True, exist_ok=True)
            imported_image = import_image(source, name, folder)
            documents.append({"name": imported_image.name, "directory": str(folder), "unused": imported_image.unused})
            screen.print_line(f"imported {imported_image.name} into {folder}")
    except (BackendError, OSError) as error:
        screen.fail(str(error))
    if screen.is_json:
        screen.print_json(documents)
    unused_settings = documents[0]["unused"] if documents else {}
    if unused_settings:
        unused_text = ", ".join(f"{key} {value}" for key, value in unused_settings.items())
        screen.inform(
            f"sessions run as the user work in /home/work, by the runner; not used of the image: {unused_text}"
        )
    screen.inform("agents that run have it within a second or two")


@image.command("list", cls=ListCommand, can_follow=False)
@_location_options
def list_(data_dir: Path | None, images: Path | None) -> None:
    """List the images that sessions can be made from; with --data-dir or --images those imported there."""
    if data_dir is None and images is None:
        from ai.backend.cli.framework.invoke import run_and_exit
        from ai.backend.cli.image.admin import print_images

        run_and_exit(screen_of(), print_images)
    from ai.backend.runtime.process.rootfs import list_images

    screen = screen_of()
    rows = [
        {"name": stored_image.name, "directory": str(folder)}
        for folder in _image_folders(data_dir, images)
        for stored_image in list_images(folder)
    ]
    if screen.is_json:
        screen.print_json(rows)
    elif rows:
        screen.print_table(rows, columns("name: Image | directory"))
    else:
        screen.print_line("There are no imported images.")


@image.command("rm")
@click.argument("name")
@_location_options
def rm(name: str, data_dir: Path | None, images: Path | None) -> None:
    """Remove the imported image NAME. Running sessions keep its files."""
    from ai.backend.runtime.process.rootfs import remove_image

    screen = screen_of()
    try:
        removed_folders = [folder for folder in _image_folders(data_dir, images) if remove_image(name, folder)]
    except OSError as error:
        screen.fail(str(error))
    if not removed_folders:
        screen.fail(f"there is no imported image {name}; `backend.ai image list --data-dir DIR` names them")
    if screen.is_json:
        screen.print_json({"removed": name, "directories": [str(folder) for folder in removed_folders]})
    screen.print_line(f"removed {name}")
