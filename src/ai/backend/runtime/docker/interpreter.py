"""The interpreter for images without Python: that of the package ``backend.ai-krunner-static-gnu`` (extra ``krunner``).

It is linked against the GNU C library, version 2.17 or newer, of the image, unpacked once without what no runner
needs, and shown to containers read-only.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import tarfile
from pathlib import Path

from ai.backend.node.workload.file_trees import remove_tree

PLACE = "/opt/backend.ai/python"
"""The interpreter's path in containers."""
LIBC = "the GNU C library 2.17 or newer"
_PACKAGE = "ai.backend.krunner.static_gnu"
_UNNEEDED = ("site-packages", "test", "idlelib", "tkinter", "ensurepip", "lib2to3", "turtledemo", "pydoc_data")


def find_archive() -> Path | None:
    """Returns the archive for this machine; None if the package is not installed or has none."""
    try:
        found = importlib.util.find_spec(_PACKAGE)
    except ModuleNotFoundError:
        return None
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).with_name(f"krunner-env.static-gnu.{platform.machine()}.tar.xz")
    return path if path.is_file() else None


def unpack(directory: Path) -> Path | None:
    """Unpacks the interpreter if needed (seconds), and returns its path; None without a package. Raises OSError."""
    archive = find_archive()
    if archive is None:
        return None
    place = directory / f"{archive.stat().st_size:x}-{platform.machine()}"
    if place.is_dir():
        return place
    unfinished = directory / f".{place.name}.{os.getpid()}"
    directory.mkdir(parents=True, exist_ok=True)
    remove_tree(unfinished)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(unfinished, members=(m for m in tar if _is_needed(m.name)), filter="tar")
        for path in (unfinished, *unfinished.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        try:
            unfinished.rename(place)
        except OSError:
            if not place.is_dir():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return place


def _is_needed(name: str) -> bool:
    parts = name.removeprefix("./").split("/")
    if parts[0] == "bin":
        return parts[-1].startswith("python3") and not parts[-1].endswith("config")
    if parts[0] != "lib" or len(parts) < 2:
        return False
    is_library = len(parts) == 2 and parts[1].startswith("libpython")
    is_module = len(parts) > 2 and parts[1].startswith("python3")
    return is_library or (is_module and parts[2] not in _UNNEEDED and "config-" not in parts[2])
