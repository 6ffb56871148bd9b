"""Stores records of kernels in the record database and undelivered observations in a file."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ai.backend.agent.channel.model import RECORD_VERSION, RunRecord, RunsRecord
from ai.backend.agent.directory.directory import DataDirectory, RecordDatabase, RecordTable
from ai.backend.agent.kernels.model import KernelRecord
from ai.backend.common.structs import replace
from ai.backend.common.wire.reports import KernelObservation
from ai.backend.infra.files import write_atomically

_LARGE_OUTBOX_BYTES = 1024 * 1024
log = logging.getLogger(__name__)
T = TypeVar("T", KernelRecord, RunsRecord)


class FileOutbox:
    """Stores an outbox as one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._size = 0

    def load(self) -> list[KernelObservation]:
        observations = []
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        for line in lines:
            try:
                observations.append(msgspec.json.decode(line, type=KernelObservation))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                log.warning("an observation in %s was cut short and is dropped; the state is reported anew", self._path)
        return observations

    def append(self, observation: KernelObservation) -> None:
        """Adds an observation. Raises OSError if the disk is full; nothing is added then."""
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        line = msgspec.json.encode(observation) + b"\n"
        written_bytes = os.write(self._fd, line)
        if written_bytes < len(line):  # the next observation would be appended to a part of this one, and both be lost
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - written_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._size += written_bytes

    def replace(self, observations: list[KernelObservation]) -> None:
        """Rewrites the file with these observations if it is large or there are none. Otherwise does nothing.

        Older observations in the file are sent again after a crash.
        """
        if observations and self._size < _LARGE_OUTBOX_BYTES:
            return
        self.rewrite(observations)

    def rewrite(self, observations: list[KernelObservation]) -> None:
        if not observations and self._fd is not None:
            os.ftruncate(self._fd, 0)
            self._size = 0
            return
        self.close()
        content = b"".join(msgspec.json.encode(observation) + b"\n" for observation in observations)
        write_atomically(self._path, content)
        self._size = len(content)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class FileKernelRecords:
    """Stores kernel records and run records in two tables, and the frames of runs that have not started in a third.

    A frame holds the user's code. It is written once, not with each change of a run.
    """

    def __init__(self, database: RecordDatabase) -> None:
        self._kernels = database.table("kernels")
        self._runs = database.table("runs")
        self._frames = database.table("run_frames")
        self._stored_frames: dict[str, dict[str, dict[str, Any]]] = {}

    def load(self) -> list[KernelRecord]:
        return _read_all(self._kernels)

    def get(self, kernel_id: str) -> KernelRecord | None:
        return _decode_record(kernel_id, self._kernels.get(kernel_id), KernelRecord)

    def put(self, record: KernelRecord) -> None:
        self._kernels.put(record.spec.kernel_id, msgspec.json.encode(record))

    def forget(self, kernel_id: str) -> None:
        self.forget_runs(kernel_id)
        self._kernels.delete(kernel_id)

    def forget_runs(self, kernel_id: str) -> None:
        self._stored_frames.pop(kernel_id, None)
        self._runs.delete(kernel_id)
        self._frames.delete_below(kernel_id)

    def load_runs(self, kernel_id: str) -> RunsRecord | None:
        record = _decode_record(kernel_id, self._runs.get(kernel_id), RunsRecord)
        if record is None:
            return None
        return replace(record, runs=[self._with_frame(kernel_id, run) for run in record.runs])

    def _with_frame(self, kernel_id: str, run: RunRecord) -> RunRecord:
        stored_frame = None if run.started or run.frame else self._frames.get(f"{kernel_id}/{run.run_id}")
        return run if stored_frame is None else replace(run, frame=msgspec.json.decode(stored_frame))

    def put_runs(self, kernel_id: str, runs: RunsRecord) -> None:
        frames = {run.run_id: run.frame for run in runs.runs if run.frame}
        stored_frames = self._stored_frames.pop(kernel_id, {})
        for run_id, frame in frames.items():
            if stored_frames.get(run_id) is not frame:
                self._frames.put(f"{kernel_id}/{run_id}", msgspec.json.encode(frame))
        run_records = [replace(run, frame={}) for run in runs.runs]
        self._runs.put(kernel_id, msgspec.json.encode(replace(runs, runs=run_records)))
        for run_id in stored_frames.keys() - frames.keys():
            self._frames.delete(f"{kernel_id}/{run_id}")
        if frames:
            self._stored_frames[kernel_id] = frames


class FileLeftovers:
    """Stores leftovers, the records of removed workloads whose hook calls must be repeated, in a database table."""

    def __init__(self, database: RecordDatabase) -> None:
        self._table = database.table("leftovers")

    def load(self) -> list[KernelRecord]:
        return _read_all(self._table)

    def put(self, record: KernelRecord) -> None:
        self._table.put(f"{record.spec.kernel_id}.{record.standing_attempt}", msgspec.json.encode(record))

    def forget(self, record: KernelRecord) -> None:
        self._table.delete(f"{record.spec.kernel_id}.{record.standing_attempt}")


class DirectoryState(DataDirectory):
    """Stores the agent's durable state in a data directory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._database = RecordDatabase(path / "records.db")

    def open(self) -> None:
        super().open()
        try:
            self._database.open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._database.close()
        super().close()

    def kernel_records(self) -> FileKernelRecords:
        return FileKernelRecords(self._database)

    def leftovers(self) -> FileLeftovers:
        return FileLeftovers(self._database)

    def outbox(self) -> FileOutbox:
        return FileOutbox(self.path / "outbox.jsonl")

    def gateway_values(self) -> RecordTable:
        return self._database.table("gateway")

    def cordons(self) -> RecordTable:
        return self._database.table("cordons")

    def whole_devices(self) -> RecordTable:
        return self._database.table("whole_devices")


def _read_all(table: RecordTable) -> list[KernelRecord]:
    records = (_decode_record(key, value, KernelRecord) for key, value in table.items().items())
    return [record for record in records if record is not None]


def _decode_record(key: str, value: bytes | None, kind: type[T]) -> T | None:
    """Decodes a record. A record of another version is ignored and stays stored for the agent that wrote it."""
    if value is None:
        return None
    try:
        record = msgspec.json.decode(value, type=kind)
        if record.version == RECORD_VERSION:
            return record
        problem = f"version {record.version} is not {RECORD_VERSION}"
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        problem = str(e)
    log.error("the %s of kernel %s cannot be used: %s", kind.__name__, key, problem)
    return None
