"""Fills the volumes of a pod with a copy of the runner and with empty files, before its other containers start."""

from __future__ import annotations

import os
import shutil
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List


def main(arguments: List[str]) -> int:
    """Executes the arguments ``--copy FOLDER INTO`` and ``--touch FILE``. Returns 2 for wrong arguments."""
    remaining = list(arguments)
    while remaining:
        option = remaining.pop(0)
        if option == "--copy" and len(remaining) >= 2:
            source, target = remaining.pop(0), remaining.pop(0)
            copy_tree(source, target)
        elif option == "--touch" and remaining:
            with open(remaining.pop(0), "ab"):
                pass
        else:
            sys.stderr.write("usage: main.py prepare [--copy FOLDER INTO] [--touch FILE]\n")
            return 2
    return 0


def copy_tree(source: str, target: str) -> None:
    """Copies the content of a folder into an existing folder. Raises OSError.

    The existing folder may belong to another user.
    """
    for entry in os.scandir(source):
        target_path = os.path.join(target, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), target_path)
        elif entry.is_dir():
            os.mkdir(target_path, 0o755)
            copy_tree(entry.path, target_path)
        else:
            shutil.copyfile(entry.path, target_path)
            status = entry.stat()
            os.chmod(target_path, status.st_mode)
            os.utime(target_path, ns=(status.st_atime_ns, status.st_mtime_ns))  # byte code names the time of its source
