"""The files of the process runtime, and how they are read after a crash.

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.node.linux.cgroups import Groups
from ai.backend.node.workload.directory import StateFolder, WorkloadFolder, read_json, write_json
from ai.backend.plugin.runtime import WorkloadKey

RECORD_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The durable record of a workload."""

    key: WorkloadKey
    session_id: SessionId
    image: str
    cookie: str
    cgroups: Sequence[Mapping[str, Any]]
    home: str
    sandboxed: bool
    memory_bytes: int | None
    cpu_limit: float | None
    home_bytes: int | None
    labels: Mapping[str, str] = field(default_factory=dict)
    made_home: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "version": RECORD_VERSION,
            "kernel_id": str(self.key.kernel_id),
            "attempt": self.key.attempt,
            "session_id": str(self.session_id),
            "image": self.image,
            "cookie": self.cookie,
            "cgroups": [dict(group) for group in self.cgroups],
            "home": self.home,
            "sandboxed": self.sandboxed,
            "memory_bytes": self.memory_bytes,
            "cpu_limit": self.cpu_limit,
            "home_bytes": self.home_bytes,
            "labels": dict(self.labels),
            "made_home": self.made_home,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Decode a record. Raises KeyError, TypeError or ValueError if it is invalid."""
        return cls(
            key=WorkloadKey(kernel_id=KernelId(UUID(data["kernel_id"])), attempt=int(data["attempt"])),
            session_id=SessionId(UUID(data["session_id"])),
            image=str(data["image"]),
            cookie=str(data["cookie"]),
            cgroups=Groups(data["cgroups"]),
            home=str(data["home"]),
            sandboxed=bool(data["sandboxed"]),
            memory_bytes=data["memory_bytes"],
            cpu_limit=data["cpu_limit"],
            home_bytes=data["home_bytes"],
            labels=dict(data["labels"]),
            made_home=bool(data["made_home"]),
        )


@dataclass(frozen=True, slots=True)
class WorkloadDirectory(WorkloadFolder):
    """One workload's directory. Nothing is cached: every method reads the disk."""

    def make(self) -> None:
        self.path.mkdir(mode=0o700)
        (self.path / "lock").touch(mode=0o600)

    def record(self) -> Record | None:
        content = read_json(self.path / "record.json")
        if content is None or content.get("version") != RECORD_VERSION:
            return None
        try:
            return Record.from_json(content)
        except (KeyError, TypeError, ValueError):
            return None

    def write_record(self, record: Record) -> None:
        write_json(self.path / "record.json", record.to_json())

    def identity(self) -> dict[str, Any] | None:
        """The shim's own file: ``boot_id``, ``shim`` and ``leader`` as [pid, start time]."""
        return read_json(self.path / "shim.json")

    def is_locked(self) -> bool:
        """Whether a shim lives. The question takes the lock for an instant; a starting shim waits longer than that."""
        try:
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    def take_lock(self, patience_s: float = 1.0) -> int | None:
        """The lock, as a descriptor to close, so that no late shim can start; None if a shim lives on.

        Waits for others of us who only look or bury; blocks that long.
        """
        try:
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        deadline = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > deadline:
                    os.close(fd)
                    return None
                time.sleep(0.01)
            else:
                return fd


class StateDirectory(StateFolder):
    """The runtime's root directory."""

    def workload(self, key: WorkloadKey) -> WorkloadDirectory:
        return WorkloadDirectory(self.workloads / str(key))

    def all_workloads(self) -> Iterator[WorkloadDirectory]:
        return (WorkloadDirectory(folder.path) for folder in self.all_folders())

    def plans(self) -> list[str]:
        """Return the text of each workload's plan."""
        texts: list[str] = []
        for path in self.workloads.glob("*/plan.json"):
            with suppress(OSError):  # removed meanwhile
                texts.append(path.read_text(encoding="utf-8"))
        return texts
