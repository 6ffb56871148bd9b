"""When the memory of a peak is given back."""

from __future__ import annotations

import asyncio
import gc

import pytest

from ai.backend.infra.loop import cancel_all
from ai.backend.infra.process import memory
from ai.backend.infra.process.memory import MemoryTrimmer


class Blocks:
    now = 1_000_000

    def __call__(self) -> int:
        return self.now


async def test_once_after_each_peak() -> None:
    blocks, rests = Blocks(), []

    async def rest() -> None:
        rests.append(blocks.now)

    trimmer = MemoryTrimmer([rest], count_blocks=blocks)
    assert not await trimmer.check()  # nothing has happened
    for now in (1_200_000, 1_300_000, 1_300_000, 1_300_000, 1_150_000, 1_011_500, 1_011_000):  # it rises, and falls
        blocks.now = now
        assert not await trimmer.check()
    assert await trimmer.check()  # it has come to rest
    assert rests == [1_011_000]
    assert not await trimmer.check()
    blocks.now = 1_005_000  # what comes and goes all the time
    assert not await trimmer.check()
    assert not await trimmer.check()
    blocks.now = 1_100_000
    assert not await trimmer.check()
    blocks.now = 1_020_000
    assert not await trimmer.check()
    assert not await trimmer.check()
    assert await trimmer.check()
    assert len(rests) == 2


async def test_what_the_start_has_made_is_set_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(memory, "_CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr(gc, "collect", lambda: calls.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    rounds = asyncio.Semaphore(0)

    def count_blocks() -> int:
        rounds.release()
        return 1_000_000

    trimming = asyncio.create_task(memory.MemoryTrimmer(count_blocks=count_blocks).run())
    for _ in range(4):  # one of them before the first check
        await rounds.acquire()
    await cancel_all(trimming)
    assert calls == ["collect", "freeze"]
