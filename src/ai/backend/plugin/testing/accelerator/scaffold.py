"""Writes the files of a new plugin (`backend.ai accelerator new NAME`) from the templates under ``skeleton``.

The author's guide uses the same files.
"""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

from ai.backend.common.errors import Conflict, InvalidInput
from ai.backend.plugin.accelerator import ENTRY_POINT_GROUP

_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_MAX_NAME = 32
_PLACEHOLDER = re.compile(r"\{(name|package|class_|project|prefix|key)\}")


def check_name(name: str) -> str:
    """Returns the name of a new plugin. Raises InvalidInput if it is malformed, or an installed plugin has it."""
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME:
        raise InvalidInput(
            f"{name!r:.80} cannot be the name of a plugin: 1 to {_MAX_NAME} lower case letters, digits and single"
            " hyphens between them, a letter first"
        )
    if name in {"mock", *(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))}:
        raise InvalidInput(f"there is a plugin {name} already; choose another name")
    return name


def render(name: str) -> dict[str, str]:
    """Returns the files of a new plugin: path -> text."""
    package = f"backendai_{name.replace('-', '_')}"
    fields = {
        "name": name,
        "package": package,
        "class_": "".join(name_part.capitalize() for name_part in name.split("-")),
        "project": f"backendai-{name}",
        "prefix": name.replace("-", "_").upper(),
        "key": name.replace("-", "_"),
    }
    skeleton_folder = Path(__file__).with_name("skeleton")
    templates = {path.relative_to(skeleton_folder).as_posix(): path for path in sorted(skeleton_folder.rglob("*.txt"))}
    return {
        name.removesuffix(".txt").replace("src/package/", f"src/{package}/"): _PLACEHOLDER.sub(
            lambda field: fields[field[1]], template.read_text(encoding="utf-8")
        )
        for name, template in templates.items()
    }


def write(name: str, folder: Path) -> list[Path]:
    """Writes a new plugin into a folder that does not exist yet, or is empty.

    Raises InvalidInput for a bad name, Conflict if the folder is not empty, OSError if it cannot be written.
    """
    check_name(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Conflict(f"{folder} is not empty; nothing was written")
    written_paths = []
    for path, file_text in render(name).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:
            file.write(file_text)
        written_paths.append(target)
    return written_paths
