"""The keepers of further processes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ai.backend.storage.services import workers
from ai.backend.storage.services.workers import Workers


async def test_a_machine_that_refuses_a_process_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    start, asked, started = asyncio.create_subprocess_exec, 0, asyncio.Event()

    async def refused_once(*command: str, **options: Any) -> asyncio.subprocess.Process:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        process = await start(*command, **options)
        started.set()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refused_once)
    monkeypatch.setattr(workers, "_AGAIN_S", 0.01)
    kept = Workers(["cat"], 1)
    kept.start()
    await asyncio.wait_for(started.wait(), 10)
    await kept.stop()
    assert asked == 2
