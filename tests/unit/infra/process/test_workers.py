"""Further processes of a daemon."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from ai.backend.infra.process.workers import ProcessSupervisor
from tests.support.cluster import wait_until

WORK = """
import asyncio, os, sys
from pathlib import Path
from typing import Any

import pytest
from ai.backend.infra.process.workers import wait_for_first_process
Path(sys.argv[1], sys.argv[2]).write_text(str(os.getpid()))
asyncio.run(wait_for_first_process())
Path(sys.argv[1], sys.argv[2]).write_text("ended")
"""


async def test_one_that_dies_is_started_again_and_all_end_with_the_first(tmp_path: Path) -> None:
    commands = {n: [sys.executable, "-c", WORK, str(tmp_path), n] for n in ("1", "2")}
    workers = ProcessSupervisor(commands, first_delay_s=0.01)
    files = [tmp_path / "1", tmp_path / "2"]
    workers.start()
    try:
        await asyncio.to_thread(wait_until, lambda: all(file.exists() and file.read_text() for file in files))
        old = int(files[0].read_text())
        os.kill(old, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: files[0].read_text() not in ("", str(old)))
        assert int(files[1].read_text()) != int(files[0].read_text())
    finally:
        await workers.stop()
    assert [file.read_text() for file in files] == ["ended", "ended"]
    await workers.stop()


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
    kept = ProcessSupervisor({"cat": ["cat"]}, first_delay_s=0.01)
    kept.start()
    await asyncio.wait_for(started.wait(), 30)
    await kept.stop()
    assert asked == 2
