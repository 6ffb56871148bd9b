"""Ends workloads, and removes the processes and files that they, their shims or crashes have left behind.

Every step may be repeated.
"""

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

KILL_TIMEOUT_S = 10.0
REMOVED_LAST_NAMES = ("lock", "removing", "record.json")


def kill_shim(directory: WorkloadDirectory) -> None:
    """Kills a workload's shim by its recorded identity, and waits until the shim's lock is free."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while directory.is_locked() and time.monotonic() < deadline:
        identity = directory.identity() or {}
        shim_identity = identity.get("shim")
        if (
            shim_identity
            and identity.get("boot_id") == proc.boot_id()
            and proc.is_same(shim_identity[0], shim_identity[1])
        ):
            with suppress(ProcessLookupError):
                os.kill(shim_identity[0], signal.SIGKILL)
        time.sleep(0.005)


def kill_helper(directory: WorkloadDirectory) -> None:
    """Kills the helper process of a workload's network, if it still runs."""
    identity = directory.identity() or {}
    helper = identity.get("helper")
    if helper and identity.get("boot_id") == proc.boot_id() and proc.is_same(helper[0], helper[1]):
        with suppress(ProcessLookupError):
            os.kill(helper[0], signal.SIGKILL)


def leftover_pids(record: Record) -> list[int]:
    """Returns the pids of the processes that a workload with a dead shim has left.

    These are the members of the workload's control groups, and the processes with its cookie
    (:func:`pids_with_cookie`).
    """
    groups = [dict(group) for group in record.cgroups]
    return sorted({*cgroupfs.members(groups), *pids_with_cookie(record.cookie)} - {os.getpid()})


def pids_with_cookie(cookie: str) -> list[int]:
    """Returns the pids of this host's processes that have the workload's cookie in their environment, except root's.

    Only a workload of an agent that is root itself could have some, and it has none.
    """
    variable = f"{COOKIE_VARIABLE}={cookie}".encode()
    pids: list[int] = []
    for process_path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if variable not in (process_path / "environ").read_bytes().split(b"\0"):
                continue
            if "\nUid:\t0\t" not in cgroupfs.read(f"{process_path}/status"):
                pids.append(int(process_path.name))
    return pids


def kill_leftovers(record: Record) -> None:
    """Kills a workload's leftover processes until none is left or a timeout passes; removes the control groups."""
    groups = [dict(group) for group in record.cgroups]
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while (pids := leftover_pids(record)) and time.monotonic() < deadline:
        cgroupfs.kill(groups)
        proc.stop_and_kill(pids)
        time.sleep(0.01)
    cgroupfs.remove(groups)


def recorded_exit(record: Record, directory: WorkloadDirectory) -> WorkloadExit:
    """Returns the recorded exit of a workload. Without a record, kills the workload's leftovers and records the exit.

    The exit is then that of a workload whose shim died.
    """
    return directory.exit() or record_exit(record, directory)


def record_exit(record: Record, directory: WorkloadDirectory) -> WorkloadExit:
    """Kills the leftover processes of a workload whose shim died, and records its exit. Idempotent."""
    lock_fd = directory.take_lock(KILL_TIMEOUT_S)
    if lock_fd is None:
        return directory.exit() or WorkloadExit(reason="shim-unknown")
    try:
        kill_helper(directory)
        kill_leftovers(record)
        workload_exit = directory.exit()
        if workload_exit is None:
            workload_exit = WorkloadExit(signal=signal.SIGKILL, reason="shim-died")
            directory.write_exit(workload_exit)
        return workload_exit
    finally:
        os.close(lock_fd)


def undo_creation(state: StateDirectory, directory: WorkloadDirectory, cgroups: CgroupDriver) -> None:
    """Removes all traces of a workload's failed creation, except an earlier home."""
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
    """Removes a workload's processes and files. The record is removed last, as the removal starts from the record."""
    record = directory.record()
    lock_fd = directory.take_lock() if directory.path.exists() else None
    if lock_fd is None and directory.path.exists():
        kill_shim(directory)
        lock_fd = directory.take_lock()
    try:
        if record is None or not directory.has_left_nothing():
            if record is not None:
                kill_helper(directory)
                kill_leftovers(record)
            cgroupfs.remove([dict(group) for group in cgroups.leftovers() if Path(group["path"]).name == str(key)])
        if not keep_home:
            remove_tree(state.home(key.kernel_id))
            crash_point("remove.home")
        for entry in list(directory.path.iterdir()) if directory.path.exists() else ():
            if entry.name not in REMOVED_LAST_NAMES:
                remove_tree(entry)
        crash_point("remove.emptied")
        remove_tree(directory.path)
    finally:
        if lock_fd is not None:
            os.close(lock_fd)


def clean_all(state: StateDirectory, cgroups: CgroupDriver) -> None:
    """Cleans up at the start of the agent what ended workloads and an earlier agent have left.

    Completes started removals, undoes partial creations, records exits, and removes groups without a workload.
    Workloads that run are left alone.
    """
    workload_names: set[str] = set()
    for directory in list(state.all_workloads()):
        workload_names.add(directory.path.name)
        record = directory.record()
        if record is None:  # the agent died before it wrote the record, so nothing was ever started
            if (lock_fd := directory.take_lock()) is not None:
                remove_tree(directory.path)
                os.close(lock_fd)
        elif directory.is_being_removed:
            erase(state, directory, record.key, keep_home=directory.keeps_home, cgroups=cgroups)
        elif directory.exit() is not None or _has_started_or_ended(directory):
            continue
        elif directory.identity() is None or (directory.identity() or {}).get("leader") is None:
            undo_creation(state, directory, cgroups)
        else:
            record_exit(record, directory)
    for group in [dict(group) for group in cgroups.leftovers() if Path(group["path"]).name not in workload_names]:
        cgroupfs.remove([group])


def _has_started_or_ended(directory: WorkloadDirectory) -> bool:
    """Returns True if the creation of a workload is complete: its shim lives and has started it, or its exit is known.

    Waits some seconds for a starting shim, and returns True for one that takes longer.
    """
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while directory.is_locked():
        if (directory.identity() or {}).get("leader") is not None or time.monotonic() > deadline:
            return True
        time.sleep(0.01)
    return directory.exit() is not None
