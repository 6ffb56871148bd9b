"""Finds a workload's processes and reads its log."""

from __future__ import annotations

import os
from pathlib import Path

from ai.backend.node.linux import cgroupfs, proc
from ai.backend.runtime.process.records import Record, WorkloadDirectory
from ai.backend.runtime.process.supervisor.session_log import LOG_FILE_NAMES


def pids_of(record: Record, directory: WorkloadDirectory) -> tuple[int, ...]:
    """Returns the pids of a workload, without those of its shim and of its network's helper."""
    member_pids = cgroupfs.members([dict(group) for group in record.cgroups])
    if member_pids:
        return tuple(member_pids)
    identity = directory.identity() or {}
    shim_pid = identity.get("shim")
    if not shim_pid or not proc.is_same(shim_pid[0], shim_pid[1]):
        return ()
    helper_pid = (identity.get("helper") or [0])[0]
    return tuple(pid for pid in proc.descendants(shim_pid[0]) if pid != helper_pid)


def read_log_tail(directory: Path, max_bytes: int) -> bytes:
    """Returns the last bytes of a workload's session log."""
    log_bytes = b""
    for file_name in reversed(LOG_FILE_NAMES):
        if len(log_bytes) >= max_bytes:
            break
        try:
            with (directory / file_name).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - (max_bytes - len(log_bytes))))
                log_bytes = file.read(max_bytes - len(log_bytes)) + log_bytes
        except FileNotFoundError:
            continue
    return log_bytes
