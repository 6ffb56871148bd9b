"""Records, outbox and epoch as files in the agent's data directory.

``kernels/<id>.json`` and ``kernels/<id>.runs.json`` are replaced atomically; ``outbox.jsonl`` is appended to, one line
each, and cut once everything is acknowledged; ``epoch`` counts the starts; ``agent.lock`` is held while an agent uses
the directory.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from ai.backend.agent.model.kernel import RECORD_VERSION, KernelRecord, RunsRecord
from ai.backend.common.errors import Conflict
from ai.backend.common.wire.agent import KernelObservation

log = logging.getLogger(__name__)
T = TypeVar("T", KernelRecord, RunsRecord)


def replace_file(path: Path, data: bytes) -> None:
    """Write so that a reader, or a successor after a crash, finds the old content or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)


class DataDirectory:
    """The agent's exclusive hold of its directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[bytes] | None = None

    def open(self) -> None:
        """Create and lock it.

        Raises:
            Conflict: another agent uses it.
        """
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (self.path / "agent.lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise Conflict(f"another agent uses {self.path}") from None
        self._lock = lock

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def next_epoch(self) -> int:
        """A number larger than at any start before."""
        path = self.path / "epoch"
        try:
            previous = int(path.read_text())
        except (FileNotFoundError, ValueError):
            previous = 0
        replace_file(path, str(previous + 1).encode())
        return previous + 1


class FileKernelRecords:
    """:class:`~ai.backend.agent.ports.records.KernelRecords` in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def load(self) -> list[KernelRecord]:
        paths = (path for path in sorted(self._directory.glob("*.json")) if not path.name.endswith(".runs.json"))
        return [record for path in paths if (record := self._read(path, KernelRecord)) is not None]

    def put(self, record: KernelRecord) -> None:
        replace_file(self._directory / f"{record.spec.kernel_id}.json", msgspec.json.encode(record))

    def forget(self, kernel_id: str) -> None:
        self.forget_runs(kernel_id)
        (self._directory / f"{kernel_id}.json").unlink(missing_ok=True)

    def forget_runs(self, kernel_id: str) -> None:
        (self._directory / f"{kernel_id}.runs.json").unlink(missing_ok=True)

    def load_runs(self, kernel_id: str) -> RunsRecord | None:
        path = self._directory / f"{kernel_id}.runs.json"
        return self._read(path, RunsRecord) if path.exists() else None

    def put_runs(self, kernel_id: str, runs: RunsRecord) -> None:
        replace_file(self._directory / f"{kernel_id}.runs.json", msgspec.json.encode(runs))

    def _read(self, path: Path, kind: type[T]) -> T | None:
        try:
            record = msgspec.json.decode(path.read_bytes(), type=kind)
            if record.version == RECORD_VERSION:
                return record
            problem = f"version {record.version} is not {RECORD_VERSION}"
        except msgspec.MsgspecError as e:
            problem = str(e)
        log.error("the record %s is set aside: %s", path, problem)
        path.replace(path.with_name(path.name + ".damaged"))
        return None


class FileOutbox:
    """:class:`~ai.backend.agent.ports.records.Outbox` in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> list[KernelObservation]:
        found = []
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        for line in lines:
            try:
                found.append(msgspec.json.decode(line, type=KernelObservation))
            except msgspec.MsgspecError:
                log.warning("an observation in %s was cut short and is dropped; the state is reported anew", self._path)
        return found

    def append(self, observation: KernelObservation) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, msgspec.json.encode(observation) + b"\n")
        finally:
            os.close(fd)

    def replace(self, observations: list[KernelObservation]) -> None:
        replace_file(self._path, b"".join(msgspec.json.encode(item) + b"\n" for item in observations))
