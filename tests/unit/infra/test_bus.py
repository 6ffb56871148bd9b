"""The bus of hints."""

from __future__ import annotations

import asyncio

import pytest

from ai.backend.infra import bus
from ai.backend.infra.bus import Bus, Signal


def test_a_slow_subscriber_keeps_the_newest_hints() -> None:
    bus = Bus()
    with bus.subscribe("a", limit=2) as subscription:
        for i in range(5):
            bus.publish("a", i)
        bus.publish("b", "not for me")
        assert subscription.drain() == [("a", 3), ("a", 4)]
    bus.publish("a", 6)
    assert subscription.drain() == []


async def test_a_signal_wakes_once_for_many_sets() -> None:
    signal = Signal()
    signal.set()
    signal.set()
    assert await signal.wait(1)
    assert not await signal.wait(0)
    waiting = asyncio.create_task(signal.wait(5))
    await asyncio.sleep(0)
    signal.set()
    assert await waiting


async def test_a_signal_outlives_a_waiter_that_is_cancelled() -> None:
    signal = Signal()
    waiting = asyncio.create_task(signal.wait(5))
    await asyncio.sleep(0)
    signal.set()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert await signal.wait(5)
    assert not await signal.wait(0.001), "it was cleared"


async def test_a_signal_has_one_waiter() -> None:
    signal = Signal()
    waiting = asyncio.create_task(signal.wait())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        await signal.wait(5)
    signal.set()
    assert await waiting


async def test_long_waits_share_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    now, calls = 100.0, []
    monkeypatch.setattr(loop, "time", lambda: now)
    monkeypatch.setattr(loop, "call_at", lambda when, callback, *args, **_: calls.append((when, callback, args)))
    signals = [Signal() for _ in range(100)]
    waiting = [asyncio.create_task(signal.wait(60.0 + number / 5000)) for number, signal in enumerate(signals)]
    await asyncio.sleep(0)
    assert len(calls) == 2, "of the first alone, which is due at once, and of the others"
    signals[1].set()
    assert await waiting[1], "a signal does not wait for the timer"
    for when, callback, args in calls:
        assert 160.0 <= when < 160.0 + 2 * bus.GRAIN_S
        callback(*args)
    assert [await task for task in waiting[2:]] == [False] * 98
    assert not await waiting[0]
