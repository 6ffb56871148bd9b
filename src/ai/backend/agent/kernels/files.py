"""Stores the records of kernels and leftovers in the record database."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TypeVar

import msgspec

from ai.backend.agent.channel.model import RunsRecord
from ai.backend.agent.directory.directory import DataDirectory
from ai.backend.agent.directory.record import RECORD_VERSION
from ai.backend.agent.directory.record_database import RecordDatabase
from ai.backend.agent.kernels.model import KernelRecord
from ai.backend.agent.kernels.outbox import FileOutbox

log = logging.getLogger(__name__)
T = TypeVar("T", KernelRecord, RunsRecord)


class FileKernelRecords:
    """Stores :class:`~ai.backend.agent.kernels.store.KernelRecords` in two tables."""

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
    """Stores :class:`~ai.backend.agent.kernels.store.Leftovers` in a table."""

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


class DirectoryState(DataDirectory):
    """:class:`~ai.backend.agent.kernels.store.DurableState` in a data directory."""

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


def _read(key: str, value: bytes, kind: type[T]) -> T | None:
    """Decode a record. One of another version is ignored and stays in the table for the agent that wrote it."""
    try:
        record = msgspec.json.decode(value, type=kind)
        if record.version == RECORD_VERSION:
            return record
        problem = f"version {record.version} is not {RECORD_VERSION}"
    except msgspec.MsgspecError as e:
        problem = str(e)
    log.error("the %s of kernel %s cannot be used: %s", kind.__name__, key, problem)
    return None
