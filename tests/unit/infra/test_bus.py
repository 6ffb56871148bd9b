"""The bus of hints."""

from __future__ import annotations

import asyncio

import pytest

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
