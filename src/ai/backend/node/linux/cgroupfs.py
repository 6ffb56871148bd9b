"""Control groups as the plan describes them: directories, what to write there, how to join, empty and remove them."""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import Any

from ai.backend.node.linux import proc


def read(path: str) -> str:
    """The file's text, empty if there is none."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:  # no pathlib here: memory
            return file.read()
    except OSError:
        return ""


def write(path: str, value: str) -> None:
    """Raises OSError. Never creates a file: a control group's files are there or not."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def build(groups: list[dict[str, Any]]) -> None:
    """Make each group and write its limits. A limit marked optional may fail. Raises OSError."""
    for group in groups:
        os.makedirs(group["path"], mode=0o755, exist_ok=True)  # as above
        for name, value, required in group["writes"]:
            try:
                write(os.path.join(group["path"], name), value)  # as above
            except OSError as error:
                if required:
                    raise OSError(error.errno, f"{name}={value}: {error.strerror}") from error


def join(groups: list[dict[str, Any]]) -> None:
    """Put the calling, single-threaded process into each group.

    Version 1 groups are joined by their ``tasks`` file: moving one's own only thread needs no lock, while a write to
    ``cgroup.procs`` waits for a grace period of the kernel (23 ms where it was measured).
    """
    for group in groups:
        write(os.path.join(group["path"], group["join"]), "0")  # as above


def members(groups: list[dict[str, Any]]) -> list[int]:
    """Processes in any of the groups."""
    found: set[int] = set()
    for group in groups:
        for line in read(os.path.join(group["path"], "cgroup.procs")).split():  # as above
            found.add(int(line))
    found.discard(0)
    return sorted(found)


def kill(groups: list[dict[str, Any]]) -> int:
    """One round of SIGKILL on every member; returns how many there were. Frozen groups are killed too."""
    for group in groups:
        for name, value in (("cgroup.kill", "1"), ("freezer.state", "THAWED")):
            try:
                write(os.path.join(group["path"], name), value)  # as above
            except OSError:
                continue
    found = members(groups)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        proc.send(found, number)
    return len(found)


def remove(groups: list[dict[str, Any]], patience_s: float = 2.0) -> list[str]:
    """Remove the groups with whatever the workload made below them; returns the paths that would not go."""
    deadline = time.monotonic() + patience_s
    left = [group["path"] for group in groups]
    while True:
        left = [path for path in left if not _remove_tree(path)]
        if not left or time.monotonic() > deadline:
            return left
        kill([{"path": path} for path in left])
        time.sleep(0.005)


def _remove_tree(path: str) -> bool:
    for parent, _, _ in os.walk(path, topdown=False):
        try:
            os.rmdir(parent)  # as above
        except OSError as error:
            if error.errno != errno.ENOENT:
                return False
    return not os.path.exists(path)  # as above
