"""Reads and writes the files of the process runtime, which survive a crash.

    <state>/workloads/<kernel id>.<attempt>/   0700
        record.json   ours: what the workload is. Written first; without it the directory is rubbish.
        lock          held (flock) by the shim while it lives
        plan.json     what the shim executes
        shim.json     the shim's: its own and the leader's process id with start time, boot id
        exit.json     the shim's: how it ended
        removing      ours: removal has begun and must be completed
        log.0 log.1   session log; shim.sock, seccomp.bpf, files/
    <state>/homes/<kernel id>/                 /home/work of every attempt

Every JSON file is replaced atomically. Only exit.json is forced to disk: after a crash of the machine there is no
process left that another file could speak of.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ai.backend.node.workload.directory import StateFolder, WorkloadFolder, read_json
from ai.backend.plugin.runtime import WorkloadKey
from ai.backend.runtime.workload import WorkloadRecord, read_record, write_record


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(WorkloadRecord):
    """Holds the facts about a workload that the process runtime stores on disk.

    ``cookie`` marks the environment of each of its processes.
    """

    cookie: str
    sandboxed: bool
    gvisor: bool = False


class WorkloadDirectory(WorkloadFolder, frozen=True):
    """Reads and writes the files of a workload's directory, without a cache."""

    def make(self) -> None:
        self.path.mkdir(mode=0o700)
        (self.path / "lock").touch(mode=0o600)

    def record(self) -> Record | None:
        return read_record(self.path, Record)

    def write_record(self, record: Record) -> None:
        write_record(self.path, record)

    def identity(self) -> dict[str, Any] | None:
        """Returns the identity that the shim recorded: ``boot_id``, ``shim`` and ``leader`` as [pid, start time]."""
        return read_json(self.path / "shim.json")

    def has_left_nothing(self) -> bool:
        """Returns True if the shim recorded that the workload left no process and no control group."""
        content = read_json(self.path / "exit.json") or {}
        return content.get("empty") is True and not content.get("stuck")

    def is_locked(self) -> bool:
        """Returns True if a living shim holds the workload's lock.

        Otherwise this call holds the lock for an instant.
        """
        try:
            lock_fd = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock_fd)
        return False

    def needs_stop(self) -> bool:
        """Returns True if the workload's shim lives and has recorded no end yet."""
        return self.is_locked() and self.exit() is None

    def take_lock(self, timeout_s: float = 1.0) -> int | None:
        """Takes the workload's lock, so that no shim can start; returns its descriptor, None if a shim lives on.

        Blocks while another call of this runtime holds it.
        """
        try:
            lock_fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > deadline:
                    os.close(lock_fd)
                    return None
                time.sleep(0.01)
            else:
                return lock_fd


class StateDirectory(StateFolder, frozen=True):
    """Finds the paths in the process runtime's state directory."""

    def workload(self, key: WorkloadKey) -> WorkloadDirectory:
        return WorkloadDirectory(self.workloads / str(key))

    def all_workloads(self) -> Iterator[WorkloadDirectory]:
        return (WorkloadDirectory(folder.path) for folder in self.all_folders())

    def plans(self) -> list[str]:
        """Returns the text of each workload's plan."""
        plan_texts: list[str] = []
        for path in self.workloads.glob("*/plan.json"):
            with suppress(OSError):  # removed meanwhile
                plan_texts.append(path.read_text(encoding="utf-8"))
        return plan_texts
