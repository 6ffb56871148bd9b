from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

import pytest

from ai.backend.common.errors import Unavailable
from ai.backend.infra.loop import PeriodicCall, PeriodicLoop, all_or_none


class Rounds(PeriodicLoop):
    """Counts its rounds, of which the first ones fail, and ends with the last."""

    def __init__(self, period_s: float, *failures: Exception, last: int) -> None:
        super().__init__()
        self.period_s = period_s
        self.count = 0
        self._failures = list(failures)
        self._last = last

    async def once(self) -> None:
        self.count += 1
        if self.count == self._last:
            raise asyncio.CancelledError
        if self._failures:
            raise self._failures.pop(0)


async def _end(loop: PeriodicLoop) -> None:
    with suppress(asyncio.CancelledError):
        async with asyncio.timeout(5):
            await loop.run()


async def test_a_loop_outlives_failures(caplog: pytest.LogCaptureFixture) -> None:
    loop = Rounds(0.0, Unavailable("nobody answers"), ValueError("a defect"), last=4)
    with caplog.at_level(logging.WARNING):
        await _end(loop)
    assert loop.count == 4
    assert [bool(record.exc_info) for record in caplog.records] == [False, True]
    assert "Rounds failed and runs again: a defect" in caplog.text


async def test_wake_begins_the_next_round_before_the_period_is_over() -> None:
    loop = Rounds(3600.0, last=2)
    loop.wake()
    await _end(loop)
    assert loop.count == 2


async def test_a_failed_round_is_repeated_within_a_minute_however_long_the_period_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The alert on stuck loops fires five minutes after the period: a loop of an hour would fire it by one failure."""
    monkeypatch.setattr("ai.backend.infra.loop._PAUSE_S", 0.01)
    monkeypatch.setattr("ai.backend.infra.loop._RETRY_S", 0.05)
    loop = Rounds(3600.0, Unavailable("nobody answers"), last=2)
    await _end(loop)
    assert (loop.count, loop.failures) == (2, 1)


async def test_a_loop_that_never_succeeds_tells_when_it_began() -> None:
    """Without a time no alert could see it."""
    loop = Rounds(0.0, Unavailable("nobody answers"), last=2)
    before = time.time()
    await _end(loop)
    assert before <= loop.succeeded_at <= time.time()


async def test_any_number_of_calls_of_wake_makes_one_more_round() -> None:
    passed = asyncio.Event()
    calls = 0

    async def call() -> None:
        nonlocal calls
        calls += 1
        passed.set()

    loop = PeriodicCall("call", 3600.0, call)
    for _ in range(3):
        loop.wake()
    task = asyncio.create_task(loop.run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert (calls, loop.name, task.done()) == (2, "call", False)
    task.cancel()


async def test_all_run_at_the_same_time() -> None:
    met = asyncio.Barrier(2)

    async def meet() -> None:
        await met.wait()

    await asyncio.wait_for(all_or_none(meet(), meet()), 5)


async def test_when_one_fails_the_others_have_ended() -> None:
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # its end takes one more turn of the loop, for which all_or_none has to wait
            ended.append("the other")

    async def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await all_or_none(wait(), fail())
    assert ended == ["the other"]
