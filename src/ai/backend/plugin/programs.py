"""Validates executables that are accelerator plugins; they speak the host protocol (:mod:`ai.backend.pluginhost`)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ai.backend.common.errors import PluginError

MAX_PATH_BYTES = 4096

OUTLIVES_VARIABLE = "BACKENDAI_OUTLIVES_HOST"
"""The environment variable, with the value 1, of a daemon that a plugin starts for workloads in a session (``setsid``)
of its own: it is not ended with the plugin's host. Who starts it must find it again and end it."""


def is_program(name: str) -> bool:
    """Returns True if the name of a plugin is a path and not that of a package or an entry point."""
    return name.startswith("/")


def check_program(path: str) -> None:
    """Checks that an executable may be run as this user: nobody but this user, root and their groups may replace it.

    Raises PluginError with what to change: the path is not plain, there is no file, it is no executable file, or it or
    a folder above it belongs to another user or can be written by others (folders with the sticky bit may).
    """
    if os.path.normpath(path) != path or path.startswith("//") or "\0" in path or len(path) > MAX_PATH_BYTES:
        raise PluginError(f"{path[:300]!r} is not a plain absolute path of an executable")
    try:
        real_path = Path(path).resolve(strict=True)
        status = real_path.stat()
        if not stat.S_ISREG(status.st_mode) or not os.access(real_path, os.X_OK):
            raise PluginError(f"{path} is not an executable file; make it one (chmod +x)")
        for checked_path in (real_path, *real_path.parents):
            _check_place(checked_path, checked_path.stat())
    except (OSError, RuntimeError) as e:
        reason = getattr(e, "strerror", None) or str(e)
        raise PluginError(f"the executable {path} cannot be read: {reason}") from None


def _check_place(checked_path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise PluginError(
            f"{checked_path} belongs to user {status.st_uid}; an executable belongs to root or the agent's user"
        )
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return
    is_foreign_group = status.st_gid not in (0, os.getegid())
    if status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and is_foreign_group):
        raise PluginError(f"{checked_path} can be written by other users; take that permission away (chmod go-w)")
