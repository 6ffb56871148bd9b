"""Stores agents' reports on reloaded plugins as files, which `backend.ai reload` reads."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ai.backend.infra.files import write_atomically

_TERMINAL_PATH = "/dev/tty"


class ReloadReport(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the result of one reload of an agent's plugins: the refused plugins with their reasons, or one error.

    ``refused`` says by plugin name why the plugin is unchanged, ``error`` why nothing was read.
    """

    refused: dict[str, str] = {}
    error: str = ""


def write_report(path: Path, report: ReloadReport) -> None:
    write_atomically(path, msgspec.json.encode(report), mode=0o644)


def read_report(path: Path, *, since: int | None) -> ReloadReport | None:
    """Returns the report of a reload. Returns None if no report is newer than ``since`` (:func:`time_of`)."""
    if time_of(path) == since:
        return None
    return msgspec.json.decode(path.read_bytes(), type=ReloadReport)


def time_of(path: Path) -> int | None:
    """Returns the modification time of a report file in nanoseconds; None if there is no report."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def has_terminal() -> bool:
    """Returns True while this process has a controlling terminal.

    The end of that terminal also sends SIGHUP.
    """
    try:
        os.close(os.open(_TERMINAL_PATH, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True
