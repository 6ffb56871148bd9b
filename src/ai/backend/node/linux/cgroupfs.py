"""Creates, joins, empties and removes control groups by a plan of directories and values."""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import Any

from ai.backend.node.linux import proc


def read(path: str) -> str:
    """Returns the text of a file; empty if the file is absent or unreadable."""
    try:
        return proc.read(path)
    except OSError:
        return ""


def write(path: str, value: str) -> None:
    """Writes a value to an existing file of a control group. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def build(groups: list[dict[str, Any]]) -> None:
    """Creates control groups and writes their limits. An optional limit may fail. Raises OSError."""
    for group in groups:
        os.makedirs(group["path"], mode=0o755, exist_ok=True)  # no pathlib here: memory
        for file_name, value, is_required in group["writes"]:
            try:
                write(os.path.join(group["path"], file_name), value)  # as above
            except OSError as error:
                if is_required:
                    raise OSError(error.errno, f"{file_name}={value}: {error.strerror}") from error


def join(groups: list[dict[str, Any]]) -> None:
    """Puts the calling, single-threaded process into each control group.

    Version 1 groups are joined by their ``tasks`` file, because a write to ``cgroup.procs`` waits for the kernel (23
    ms).
    """
    for group in groups:
        write(os.path.join(group["path"], group["join"]), "0")  # as above


def members(groups: list[dict[str, Any]]) -> list[int]:
    """Returns the pids of the processes in any of the control groups."""
    pids: set[int] = set()
    for group in groups:
        for line in read(os.path.join(group["path"], "cgroup.procs")).split():  # as above
            pids.add(int(line))
    pids.discard(0)
    return sorted(pids)


def kill(groups: list[dict[str, Any]]) -> int:
    """Sends SIGKILL to all processes of the control groups, frozen ones too, and returns their number."""
    for group in groups:
        for file_name, file_text in (("cgroup.kill", "1"), ("freezer.state", "THAWED")):
            try:
                write(os.path.join(group["path"], file_name), file_text)  # as above
            except OSError:
                continue
    pids = members(groups)
    for signal_number in (signal.SIGSTOP, signal.SIGKILL):
        proc.send(pids, signal_number)
    return len(pids)


def remove(groups: list[dict[str, Any]], patience_s: float = 2.0) -> list[str]:
    """Removes control groups and their subgroups; returns the paths that could not be removed."""
    deadline = time.monotonic() + patience_s
    remaining_paths = [group["path"] for group in groups]
    while True:
        remaining_paths = [path for path in remaining_paths if not _remove_tree(path)]
        if not remaining_paths or time.monotonic() > deadline:
            return remaining_paths
        kill([{"path": path} for path in remaining_paths])
        time.sleep(0.005)


def _remove_tree(path: str) -> bool:
    for parent, _, _ in os.walk(path, topdown=False):
        try:
            os.rmdir(parent)  # as above
        except OSError as error:
            if error.errno != errno.ENOENT:
                return False
    return not os.path.exists(path)  # as above
