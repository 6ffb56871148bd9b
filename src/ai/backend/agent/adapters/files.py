"""Records, outbox and epoch as files in the agent's data directory.

``records.db`` holds the records; ``outbox.jsonl`` is appended to, one line each, and emptied once everything is
acknowledged; ``epoch`` counts the starts; ``secret`` is what keys of sessions follow from; ``agent.lock`` is held while
an agent uses the directory.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from ai.backend.agent.adapters.record_database import RecordDatabase
from ai.backend.agent.model.kernel import RECORD_VERSION, KernelRecord, RunsRecord
from ai.backend.common.errors import Conflict
from ai.backend.common.wire.reports import KernelObservation
from ai.backend.infra.atomic_write import write_atomically

log = logging.getLogger(__name__)
T = TypeVar("T", KernelRecord, RunsRecord)
_SECRET_BYTES = 32
_LARGE_OUTBOX = 1024 * 1024


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
        write_atomically(path, str(previous + 1).encode())
        return previous + 1

    def secret(self) -> bytes:
        """Made at the first start, and known to this agent alone."""
        path = self.path / "secret"
        try:
            known = path.read_bytes()
        except FileNotFoundError:
            known = b""
        if len(known) != _SECRET_BYTES:
            known = secrets.token_bytes(_SECRET_BYTES)
            write_atomically(path, known)
            path.chmod(0o600)
        return known


class FileKernelRecords:
    """:class:`~ai.backend.agent.ports.records.KernelRecords` in two tables."""

    def __init__(self, database: RecordDatabase) -> None:
        self._kernels = database.table("kernels")
        self._runs = database.table("runs")

    def load(self) -> list[KernelRecord]:
        records = [_read(key, value, KernelRecord) for key, value in self._kernels.items().items()]
        return [record for record in records if record is not None]

    def get(self, kernel_id: str) -> KernelRecord | None:
        value = self._kernels.get(kernel_id)
        return _read(kernel_id, value, KernelRecord) if value is not None else None

    def put(self, record: KernelRecord) -> None:
        self._kernels.put(record.spec.kernel_id, msgspec.json.encode(record))

    def forget(self, kernel_id: str) -> None:
        self.forget_runs(kernel_id)
        self._kernels.delete(kernel_id)

    def forget_runs(self, kernel_id: str) -> None:
        self._runs.delete(kernel_id)

    def load_runs(self, kernel_id: str) -> RunsRecord | None:
        value = self._runs.get(kernel_id)
        return _read(kernel_id, value, RunsRecord) if value is not None else None

    def put_runs(self, kernel_id: str, runs: RunsRecord) -> None:
        self._runs.put(kernel_id, msgspec.json.encode(runs))


class FileLeftovers:
    """:class:`~ai.backend.agent.ports.records.Leftovers` in a table."""

    def __init__(self, database: RecordDatabase) -> None:
        self._table = database.table("leftovers")

    def load(self) -> list[KernelRecord]:
        records = [_read(key, value, KernelRecord) for key, value in self._table.items().items()]
        return [record for record in records if record is not None]

    def put(self, record: KernelRecord) -> None:
        self._table.put(self._name(record), msgspec.json.encode(record))

    def forget(self, record: KernelRecord) -> None:
        self._table.delete(self._name(record))

    @staticmethod
    def _name(record: KernelRecord) -> str:
        return f"{record.spec.kernel_id}.{record.standing_attempt}"


def _read(key: str, value: bytes, kind: type[T]) -> T | None:
    """A record of another version stays in the table for the agent that wrote it, and is unknown to this one."""
    try:
        record = msgspec.json.decode(value, type=kind)
        if record.version == RECORD_VERSION:
            return record
        problem = f"version {record.version} is not {RECORD_VERSION}"
    except msgspec.MsgspecError as e:
        problem = str(e)
    log.error("the %s of kernel %s cannot be used: %s", kind.__name__, key, problem)
    return None


class FileOutbox:
    """:class:`~ai.backend.agent.ports.records.Outbox` in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._size = 0

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
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._size += os.write(self._fd, msgspec.json.encode(observation) + b"\n")

    def replace(self, observations: list[KernelObservation]) -> None:
        """What was acknowledged may stay until the file is large: it is only sent once more after a crash."""
        if observations and self._size < _LARGE_OUTBOX:
            return
        self.rewrite(observations)

    def rewrite(self, observations: list[KernelObservation]) -> None:
        if not observations and self._fd is not None:
            os.ftruncate(self._fd, 0)
            self._size = 0
            return
        self.close()
        content = b"".join(msgspec.json.encode(item) + b"\n" for item in observations)
        write_atomically(self._path, content)
        self._size = len(content)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
