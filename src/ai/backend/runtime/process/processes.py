"""Finds a workload's processes and reads its log."""

from __future__ import annotations

import os
from pathlib import Path

from ai.backend.node.linux import cgroupfs, proc
from ai.backend.runtime.process.records import Record, WorkloadDirectory
from ai.backend.runtime.process.supervisor.session_log import NAMES


def pids_of(record: Record, directory: WorkloadDirectory) -> tuple[int, ...]:
    """Returns every process of the workload without its shim."""
    members = cgroupfs.members([dict(group) for group in record.cgroups])
    if members:
        return tuple(members)
    shim = (directory.identity() or {}).get("shim")
    if not shim or not proc.is_same(shim[0], shim[1]):
        return ()
    return tuple(proc.descendants(shim[0]))


def read_log_tail(directory: Path, max_bytes: int) -> bytes:
    """Returns the end of the session log."""
    data = b""
    for name in reversed(NAMES):
        if len(data) >= max_bytes:
            break
        try:
            with (directory / name).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - (max_bytes - len(data))))
                data = file.read(max_bytes - len(data)) + data
        except FileNotFoundError:
            continue
    return data
