"""A process runtime in each tier with a sandbox, for tests that attack it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.node.workload.file_trees import remove_tree
from ai.backend.plugin.accelerator import WorkloadConfig
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.plugin.testing.runtime.suite import Talk
from ai.backend.runtime.process.runtime import ProcessRuntime
from ai.backend.runtime.process.settings import ProcessRuntimeSettings
from tests.component.runtime.audit import eventually, traces_of

MIB = 1024 * 1024


class Bench:
    """One runtime and what was started on it."""

    def __init__(self, runtime: ProcessRuntime, state: Path) -> None:
        self.runtime = runtime
        self.state = state

    async def start(self, **changes: Any) -> tuple[WorkloadKey, Talk]:
        key = changes.pop("key", None) or WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
        config = changes.pop("config", WorkloadConfig(cpu_limit=2.0, memory_limit_bytes=128 * MIB))
        spec = WorkloadSpec(key=key, session_id=SessionId(uuid4()), image="python", config=config, **changes)
        await self.runtime.create(spec)
        talk = Talk(await self.runtime.open_channel(key, epoch=1), 30.0)
        await talk.kind("ready")
        return key, talk

    async def end(self, key: WorkloadKey, talk: Talk) -> None:
        await talk.close()
        started = time.monotonic()
        await self.runtime.remove(key)
        assert time.monotonic() - started < 15
        assert not await asyncio.to_thread(eventually, lambda: traces_of(str(key.kernel_id), self.state))


@pytest.fixture(params=["sealed", "caged", "sealed-by-root"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    settings: dict[str, Any] = {"watch_interval_s": 1.0}
    if request.param == "caged":
        settings["cgroups"] = "off"
    if request.param == "sealed-by-root":
        settings["user_namespaces"] = "off"
    state = tmp_path / "state"
    runtime = ProcessRuntime(ProcessRuntimeSettings(**settings), state)
    await runtime.setup()
    assert runtime.info().tier == request.param.partition("-")[0]
    try:
        yield Bench(runtime, state)
        for view in await runtime.list_workloads():
            await runtime.remove(view.key)
        await runtime.shutdown()
    finally:
        remove_tree(state)  # also after a test that failed: what it made may be too deep for pytest's clean-up
