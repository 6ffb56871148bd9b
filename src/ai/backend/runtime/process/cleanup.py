"""Ends workloads and removes what crashes, shims and finished workloads leave. Every step may be repeated."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from ai.backend.node.linux import cgroupfs, proc
from ai.backend.node.linux.cgroups import CgroupDriver
from ai.backend.node.workload.file_trees import remove_tree
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import WorkloadExit, WorkloadKey
from ai.backend.runtime.process.launch_plan import COOKIE_VARIABLE
from ai.backend.runtime.process.records import Record, StateDirectory, WorkloadDirectory

PATIENCE_S = 10.0
PLAIN_FILES_LAST = ("lock", "removing", "record.json")


def kill_shim(directory: WorkloadDirectory) -> None:
    """SIGKILL a shim by its recorded identity, once it has recorded it, and wait until its lock is free."""
    deadline = time.monotonic() + PATIENCE_S
    while directory.is_locked() and time.monotonic() < deadline:
        identity = directory.identity() or {}
        shim = identity.get("shim")
        if shim and identity.get("boot_id") == proc.boot_id() and proc.is_same(shim[0], shim[1]):
            with suppress(ProcessLookupError):
                os.kill(shim[0], signal.SIGKILL)
        time.sleep(0.005)


def leftovers(record: Record) -> list[int]:
    """Returns the processes of a workload whose shim is dead: members of its groups, and those with its cookie."""
    groups = [dict(group) for group in record.cgroups]
    return sorted({*cgroupfs.members(groups), *bearers(record.cookie)} - {os.getpid()})


def bearers(cookie: str) -> list[int]:
    """Returns the processes of this host with the workload's cookie in their environment."""
    mark = f"{COOKIE_VARIABLE}={cookie}".encode()
    pids: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if mark in (path / "environ").read_bytes():
                pids.append(int(path.name))
    return pids


def kill_leftovers(record: Record) -> None:
    """Sends SIGKILL until no process is left, or a deadline passes."""
    groups = [dict(group) for group in record.cgroups]
    deadline = time.monotonic() + PATIENCE_S
    while (pids := leftovers(record)) and time.monotonic() < deadline:
        cgroupfs.kill(groups)
        proc.stop_and_kill(pids)
        time.sleep(0.01)
    cgroupfs.remove(groups)


def record_exit(record: Record, directory: WorkloadDirectory) -> WorkloadExit:
    """Makes the end of a workload whose shim died known, after killing what it may have left. Idempotent."""
    lock = directory.take_lock(PATIENCE_S)
    if lock is None:
        return directory.exit() or WorkloadExit(reason="shim-unknown")
    try:
        kill_leftovers(record)
        ended = directory.exit()
        if ended is None:
            ended = WorkloadExit(signal=signal.SIGKILL, reason="shim-died")
            directory.write_exit(ended)
        return ended
    finally:
        os.close(lock)


def undo_creation(state: StateDirectory, directory: WorkloadDirectory, cgroups: CgroupDriver) -> None:
    """Removes everything of a creation that failed; an earlier home stays."""
    record = directory.record()
    kill_shim(directory)
    if record is None:
        remove_tree(directory.path)
        return
    directory.mark_removing(keep_home=not record.made_home)
    erase(state, directory, record.key, keep_home=not record.made_home, cgroups=cgroups)


def erase(
    state: StateDirectory,
    directory: WorkloadDirectory,
    key: WorkloadKey,
    *,
    keep_home: bool,
    cgroups: CgroupDriver,
) -> None:
    """Removes every trace of a workload. The record is removed last, because it leads to all else."""
    record = directory.record()
    lock = directory.take_lock() if directory.path.exists() else None
    if lock is None and directory.path.exists():
        kill_shim(directory)
        lock = directory.take_lock()
    try:
        if record is not None:
            kill_leftovers(record)
        cgroupfs.remove([dict(group) for group in cgroups.leftovers() if Path(group["path"]).name == str(key)])
        if not keep_home:
            remove_tree(state.home(key.kernel_id))
            crash_point("remove.home")
        for entry in list(directory.path.iterdir()) if directory.path.exists() else ():
            if entry.name not in PLAIN_FILES_LAST:
                remove_tree(entry)
        crash_point("remove.emptied")
        remove_tree(directory.path)
    finally:
        if lock is not None:
            os.close(lock)


def clean_all(state: StateDirectory, cgroups: CgroupDriver) -> None:
    """Completes started removals, undo partial creations, record exits, and remove groups without a workload."""
    names: set[str] = set()
    for directory in list(state.all_workloads()):
        names.add(directory.path.name)
        record = directory.record()
        if record is None:  # the agent died before it wrote the record, so nothing was ever started
            if (lock := directory.take_lock()) is not None:
                remove_tree(directory.path)
                os.close(lock)
        elif directory.is_being_removed:
            erase(state, directory, record.key, keep_home=directory.keeps_home, cgroups=cgroups)
        elif directory.exit() is not None or _is_alive(directory):
            continue
        elif directory.identity() is None or (directory.identity() or {}).get("leader") is None:
            undo_creation(state, directory, cgroups)
        else:
            record_exit(record, directory)
    for group in [dict(group) for group in cgroups.leftovers() if Path(group["path"]).name not in names]:
        cgroupfs.remove([group])


def _is_alive(directory: WorkloadDirectory) -> bool:
    """Returns True if a shim lives and has started its workload; one that is about to is waited for."""
    deadline = time.monotonic() + PATIENCE_S
    while directory.is_locked():
        if (directory.identity() or {}).get("leader") is not None or time.monotonic() > deadline:
            return True
        time.sleep(0.01)
    return directory.exit() is not None
