"""Makes what must be in a pod's volumes before its other containers are made: a copy of the runner, empty files."""

from __future__ import annotations

import os
import shutil
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List


def main(arguments: List[str]) -> int:
    """Does ``--copy FOLDER INTO`` and ``--touch FILE``; returns 2 for wrong arguments."""
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "--copy" and len(words) >= 2:
            source, target = words.pop(0), words.pop(0)
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, copy_function=_copy)
        elif word == "--touch" and words:
            with open(words.pop(0), "ab"):
                pass
        else:
            sys.stderr.write("usage: main.py prepare [--copy FOLDER INTO] [--touch FILE]\n")
            return 2
    return 0


def _copy(source: str, target: str) -> str:
    shutil.copyfile(source, target)
    status = os.stat(source)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))  # byte code names the time of its source
    os.chmod(target, status.st_mode)
    return target
