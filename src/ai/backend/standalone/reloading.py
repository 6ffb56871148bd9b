"""Reports of agents on the plugins that they reloaded, as files that `backend.ai reload` reads."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ai.backend.infra.files import write_atomically

_TERMINAL = "/dev/tty"


class ReloadReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one reload of an agent: why plugins are as before, by their names; or why nothing was read."""

    refused: dict[str, str] = {}
    error: str = ""


def write_report(path: Path, report: ReloadReport) -> None:
    write_atomically(path, msgspec.json.encode(report), mode=0o644)


def read_report(path: Path, *, since: int | None) -> ReloadReport | None:
    """Returns the report of a reload; None if there is none that is newer than ``since`` (:func:`time_of`)."""
    if time_of(path) == since:
        return None
    return msgspec.json.decode(path.read_bytes(), type=ReloadReport)


def time_of(path: Path) -> int | None:
    """Returns when a report was written, in nanoseconds; None without one."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def has_terminal() -> bool:
    """Returns True while this process has a controlling terminal, whose end is told by SIGHUP, too."""
    try:
        os.close(os.open(_TERMINAL, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True
