"""Provides a Python interpreter to containers of images that have no Python.

The interpreter comes from the package ``backend.ai-krunner-static-gnu`` (extra ``krunner``). It is linked against the
GNU C library, version 2.17 or newer, of the image, unpacked once without what no runner needs, and shown to containers
read-only.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import tarfile
from pathlib import Path

from ai.backend.node.workload.file_trees import remove_tree

CONTAINER_PATH = "/opt/backend.ai/python"
"""The interpreter's path in containers."""
REQUIRED_LIBC = "the GNU C library 2.17 or newer"
_PACKAGE = "ai.backend.krunner.static_gnu"
_UNNEEDED_MODULES = ("site-packages", "test", "idlelib", "tkinter", "ensurepip", "lib2to3", "turtledemo", "pydoc_data")


def find_archive() -> Path | None:
    """Returns the archive for this machine; None if the package is not installed or has none."""
    try:
        package_spec = importlib.util.find_spec(_PACKAGE)
    except ModuleNotFoundError:
        return None
    if package_spec is None or package_spec.origin is None:
        return None
    archive_path = Path(package_spec.origin).with_name(f"krunner-env.static-gnu.{platform.machine()}.tar.xz")
    return archive_path if archive_path.is_file() else None


def unpack(interpreters_folder: Path) -> Path | None:
    """Unpacks the interpreter if needed (seconds), and returns its path; None without a package. Raises OSError."""
    archive = find_archive()
    if archive is None:
        return None
    interpreter_folder = interpreters_folder / f"{archive.stat().st_size:x}-{platform.machine()}"
    if interpreter_folder.is_dir():
        return interpreter_folder
    unfinished_folder = interpreters_folder / f".{interpreter_folder.name}.{os.getpid()}"
    interpreters_folder.mkdir(parents=True, exist_ok=True)
    remove_tree(unfinished_folder)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(
                unfinished_folder, members=(member for member in tar if _is_needed(member.name)), filter="tar"
            )
        for path in (unfinished_folder, *unfinished_folder.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        try:
            unfinished_folder.rename(interpreter_folder)
        except OSError:
            if not interpreter_folder.is_dir():
                raise
    finally:
        shutil.rmtree(unfinished_folder, ignore_errors=True)
    return interpreter_folder


def _is_needed(member_name: str) -> bool:
    member_parts = member_name.removeprefix("./").split("/")
    if member_parts[0] == "bin":
        return member_parts[-1].startswith("python3") and not member_parts[-1].endswith("config")
    if member_parts[0] != "lib" or len(member_parts) < 2:
        return False
    is_library = len(member_parts) == 2 and member_parts[1].startswith("libpython")
    is_module = len(member_parts) > 2 and member_parts[1].startswith("python3")
    return is_library or (is_module and member_parts[2] not in _UNNEEDED_MODULES and "config-" not in member_parts[2])
