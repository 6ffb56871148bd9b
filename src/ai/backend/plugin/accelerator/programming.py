"""Locates the images (bitstreams) for programmable devices, which sessions select by file name.

The images lie in the operator's folder.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pydantic import Field

from ai.backend.common.errors import CreationDenied
from ai.backend.plugin.options import PluginOptions

IMAGE_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}$"


class ProgrammableOptions(PluginOptions):
    """Options of a session on programmable devices. A plugin may add its own to them."""

    image: str | None = Field(
        default=None,
        pattern=IMAGE_NAME_PATTERN,
        description="Image that every device of the session has loaded before it starts: a file name in the folder"
        " that the node's operator keeps images in.",
    )


def image_in(folder: Path | None, name: str) -> str:
    """Returns the path of an image that a session selects.

    Sessions name files, never paths: an image of another folder, a link and what is no regular file are refused. Raises
    CreationDenied, with the name.
    """
    if folder is None:
        raise CreationDenied(f"this node offers no images for devices, so {name!r:.140} cannot be loaded")
    image_path = folder / name
    try:
        is_file = image_path.parent == folder and stat.S_ISREG(os.lstat(image_path).st_mode)
    except OSError:
        is_file = False
    if not is_file:
        raise CreationDenied(f"there is no image {name!r:.140} for devices on this node")
    return str(image_path)
