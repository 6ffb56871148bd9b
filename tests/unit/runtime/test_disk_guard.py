"""The periodic checks of homes and of their disk, over measurements that fail."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from ai.backend.common.errors import WorkloadError
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.plugin.runtime import WorkloadKey
from ai.backend.runtime.disk_guard import DiskGuard
from ai.backend.runtime.settings import RuntimeSettings
from ai.backend.runtime.workload import WorkloadRecord


def record(home: Path) -> WorkloadRecord:
    key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
    return WorkloadRecord(
        key=key,
        session_id=SessionId(uuid4()),
        image="i",
        home=str(home),
        memory_bytes=None,
        cpu_limit=None,
        home_bytes=10,
    )


async def test_a_failed_measurement_stops_neither_the_guard_nor_the_check_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, full = record(tmp_path / "broken"), record(tmp_path / "full")
    failures, ended = 0, asyncio.Queue[WorkloadKey]()

    async def measure_bytes(measured: WorkloadRecord) -> int:
        nonlocal failures
        if measured is broken:
            failures += 1
            raise OSError("I/O error")
        return 11

    async def pids_of(_: WorkloadKey) -> Sequence[int]:
        raise WorkloadError("the engine does not answer")

    async def end_workload(key: WorkloadKey, _: str, __: bool) -> None:
        ended.put_nowait(key)

    monkeypatch.setattr("ai.backend.node.linux.disk_space.is_low", lambda *_: True)
    settings = RuntimeSettings().model_copy(update={"watch_interval_s": 0.0})
    guard = DiskGuard(settings, tmp_path, lambda: [broken, full], measure_bytes, pids_of, end_workload)
    running = asyncio.create_task(guard.run())
    async with asyncio.timeout(10):
        assert [await ended.get() for _ in range(3)] == [full.key] * 3
    assert failures >= 3
    assert not running.done()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
