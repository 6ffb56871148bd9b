"""Reads and writes the directories of workloads and the home directories on this machine, for every runtime.

<state>/workloads/<kernel id>.<attempt>/   exit.json (how it ended), removing (removal has begun), and more
<state>/homes/<kernel id>/                 /home/work of every attempt, unless homes are elsewhere
"""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ai.backend.common.ids import KernelId
from ai.backend.plugin.runtime import WorkloadExit, WorkloadKey

log = logging.getLogger(__name__)


def read_json(path: Path) -> dict[str, Any] | None:
    """Returns the JSON object in a file; None if there is no file or no valid object."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def write_new_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON object to a new file, not atomically. Raises OSError.

    A reader that comes too early sees no valid object.
    """
    path.write_text(json.dumps(content), encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replaces a file by a JSON object atomically. Raises OSError."""
    temporary_path = path.with_name(path.name + ".tmp")
    temporary_path.write_text(json.dumps(content), encoding="utf-8")
    temporary_path.replace(path)


def exit_of(content: Mapping[str, Any]) -> WorkloadExit:
    """Parses the fields of a workload's end, from the shim's file or message, into a :class:`WorkloadExit`."""
    return WorkloadExit(
        code=content.get("code"),
        signal=content.get("signal"),
        oom=bool(content.get("oom")),
        reason=str(content.get("reason") or ""),
        program=bool(content.get("program")),
    )


class WorkloadFolder(msgspec.Struct, frozen=True):
    """Represents the directory of one workload. Nothing is cached: every method reads the disk."""

    path: Path

    def exit(self) -> WorkloadExit | None:
        content = read_json(self.path / "exit.json")
        return None if content is None else exit_of(content)

    def write_exit(self, workload_exit: WorkloadExit) -> None:
        content = {
            "code": workload_exit.code,
            "signal": workload_exit.signal,
            "oom": workload_exit.oom,
            "reason": workload_exit.reason,
        }
        write_json(self.path / "exit.json", {"version": 1, **content})

    @property
    def is_being_removed(self) -> bool:
        return (self.path / "removing").exists()

    @property
    def keeps_home(self) -> bool:
        content = read_json(self.path / "removing")
        return bool(content and content.get("keep_home"))

    def mark_removing(self, *, keep_home: bool) -> None:
        """Records on disk that the removal of the workload has begun, so that an interrupted removal is resumed.

        On a full disk nothing is recorded: the removal frees the disk, and its caller repeats it.
        """
        try:
            write_json(self.path / "removing", {"keep_home": keep_home})
        except OSError as e:
            if e.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            log.warning("the removal of %s is not recorded, since the disk is full", self.path.name)


class StateFolder(msgspec.Struct, frozen=True):
    """Represents the root directory of a runtime. ``homes_directory`` has the homes, if they are elsewhere."""

    path: Path
    homes_directory: Path | None = None

    @property
    def homes(self) -> Path:
        return self.homes_directory or self.path / "homes"

    @property
    def workloads(self) -> Path:
        return self.path / "workloads"

    def make(self) -> None:
        """Creates the runtime's private directories: a session reaches its home by a mount, never by a path."""
        for directory in (self.path, self.homes, self.workloads):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)

    def folder(self, key: WorkloadKey) -> WorkloadFolder:
        return WorkloadFolder(self.workloads / str(key))

    def home(self, kernel_id: KernelId) -> Path:
        return self.homes / str(kernel_id)

    def all_folders(self) -> Iterator[WorkloadFolder]:
        try:
            entries = sorted(self.workloads.iterdir())
        except FileNotFoundError:
            return
        for entry in entries:
            if entry.is_dir() and not entry.is_symlink():
                yield WorkloadFolder(entry)
