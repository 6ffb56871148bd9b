"""What is left on this machine of a cluster or a session, found without asking the product.

Looks at /proc, the cgroup trees, the data directory and the rows of the database with nothing but the standard library.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def processes(*marks: str) -> dict[int, str]:
    """Live processes whose environment, command line or working directory mentions one of ``marks``: pid -> command."""
    found: dict[int, str] = {}
    wanted = [mark.encode() for mark in marks]
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        command = _read(folder / "cmdline")
        try:
            place = os.readlink(folder / "cwd").encode()
        except OSError:
            place = b""
        text = b"\0".join((command, _read(folder / "environ"), place))
        state = _read(folder / "stat").rpartition(b")")[2].split()[:1]
        if state != [b"Z"] and any(mark in text for mark in wanted):
            found[int(folder.name)] = command.replace(b"\0", b" ").decode(errors="replace")[:200]
    return found


def cgroups(*marks: str) -> list[str]:
    """Control groups whose path mentions one of ``marks``, in every hierarchy."""
    return sorted(
        folder
        for folder, _, _ in os.walk("/sys/fs/cgroup")
        if any(mark in folder.removeprefix("/sys/fs/cgroup") for mark in marks)
    )


def paths(root: Path, *marks: str) -> list[str]:
    """Files and directories below ``root`` whose name mentions one of ``marks``."""
    return sorted(
        str(Path(folder, name))
        for folder, folders, files in os.walk(root)
        for name in (*folders, *files)
        if any(mark in name for mark in marks)
    )


def rows(database: Path, query: str, *parameters: object) -> list[dict[str, object]]:
    """The answer of one query on the database file, read-only."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute(query, parameters)]
    finally:
        connection.close()


def leftovers(data_dir: Path, *ids: str) -> Iterator[str]:
    """Everything that still mentions these kernels; nothing is the good answer.

    Not counted: log lines, database rows, and the agent's note that a kernel has ended, which it keeps for an hour so
    that a command which comes late cannot create it again.
    """
    for pid, command in processes(*ids).items():
        yield f"process {pid}: {command}"
    yield from (f"cgroup {path}" for path in cgroups(*ids))
    yield from (f"path {path}" for path in paths(data_dir, *ids) if not _is_tombstone(Path(path)))


def _is_tombstone(path: Path) -> bool:
    if path.parent.name != "kernels" or path.suffix != ".json":
        return False
    try:
        return "TERMINATED" in path.read_text() or "ERROR" in path.read_text()
    except FileNotFoundError:
        return True
