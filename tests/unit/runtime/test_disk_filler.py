"""The last writes of a session that was ended for a full disk count for no other session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from ai.backend.common.ids import KernelId
from ai.backend.node.linux import disk_space
from ai.backend.plugin.runtime import WorkloadKey
from ai.backend.runtime.disk_guard import OWNER_LABEL, DiskGuard
from ai.backend.runtime.settings import RuntimeSettings
from ai.backend.runtime.workload import WorkloadRecord


@dataclass
class _Record:
    """Stands for the record of a workload that mounts a shared folder."""

    home: str
    writable_sources: tuple[str, ...]
    labels: dict[str, str]
    key: WorkloadKey = field(default_factory=lambda: WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1))
    home_bytes: int | None = None

    def own_directories(self) -> tuple[str, ...]:
        return (self.home,)


async def test_a_reader_of_the_folder_outlives_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    big = shared / "big"
    records: list[_Record] = []
    for name in ("attacker", "victim"):
        (tmp_path / name).mkdir()
        records.append(_Record(str(tmp_path / name), (str(shared),), {OWNER_LABEL: name}))
    writer, reader = records
    monkeypatch.setattr(disk_space, "is_low", lambda *_: True)
    monkeypatch.setattr(disk_space, "needed_bytes", lambda *_: 1 << 20)
    monkeypatch.setattr(disk_space, "unlinked_bytes", lambda *_: 0)
    monkeypatch.setattr(disk_space, "open_inodes", lambda pids, _: {big.stat().st_ino} if pids == [1] else set())
    ended: list[WorkloadKey] = []

    attempts: list[WorkloadKey] = []

    async def end(key: WorkloadKey, _reason: str, _removes_home: bool) -> None:
        attempts.append(key)
        if len(attempts) == 1:
            raise OSError("the disk is full")
        big.write_bytes(bytes(2 << 20))  # it writes until it is dead
        ended.append(key)
        records[:] = [record for record in records if record.key != key]

    async def pids_of(key: WorkloadKey) -> Sequence[int]:
        return [1] if key == writer.key else [2]

    async def measure(_record: WorkloadRecord) -> int:
        return 0

    guard = DiskGuard(RuntimeSettings(), tmp_path, cast(Any, lambda: records), measure, pids_of, end)
    big.write_bytes(bytes(2 << 20))
    with pytest.raises(OSError, match="full"):
        await guard._check_disk()
    for _ in range(2):
        await guard._check_disk()
    assert ended == [writer.key], "although the first attempt failed, and it wrote nothing since"
    assert [record.key for record in records] == [reader.key]
