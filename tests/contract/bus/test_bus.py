"""What every bus and every rate limiter promises: those of one process, and those that processes share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import pytest

from ai.backend.common.errors import RateLimitExceeded
from ai.backend.infra.bus import Bus, Subscription
from ai.backend.infra.http.ratelimit import STEP_S, WINDOW_S, Limiter, RateLimiter
from tests.support.redis_server import RedisServer

ADAPTERS = ["memory", pytest.param("redis", marks=pytest.mark.needs("redis"))]
_numbers = count()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


async def heard(subscription: Subscription) -> tuple[str, Any]:
    return await asyncio.wait_for(subscription.get(), 30)


@pytest.fixture(params=ADAPTERS)
async def buses(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Bus, Bus]]:
    """Two processes' ends of one bus; of the one in memory there is only one end."""
    if request.param == "memory":
        bus = Bus()
        yield bus, bus
        return
    from ai.backend.infra.redis import RedisBus

    stream = f"test{next(_numbers)}"
    ends = [RedisBus(request.getfixturevalue("redis").url, stream=stream) for _ in range(2)]
    for end in ends:
        with end.subscribe("ready") as ready:
            await end.start()
            await heard(ready)  # every topic is told when it has joined
    yield ends[0], ends[1]
    for end in ends:
        await end.stop()


async def test_a_hint_reaches_the_subscribers_of_its_topic(buses: tuple[Bus, Bus]) -> None:
    here, there = buses
    with here.subscribe("a") as mine, there.subscribe("a", "b") as far, there.subscribe("c") as other:
        here.publish("a", "payload")
        assert await heard(mine) == ("a", "payload")
        assert (await heard(far))[0] == "a"
        here.publish("b")
        assert (await heard(far))[0] == "b"
        there.publish("c")
        assert (await heard(other))[0] == "c"
        assert other.drain() == []
        assert mine.drain() == [], "nobody hears a hint of its own twice"


async def test_a_burst_is_heard_at_least_once_and_after_its_last_hint(buses: tuple[Bus, Bus]) -> None:
    here, there = buses
    told = 0
    with there.subscribe("a", limit=2) as far:

        async def listen() -> int:
            seen = 0
            while seen < 1000:
                await heard(far)
                seen = told
            return seen

        listening = asyncio.create_task(listen())
        for _ in range(1000):
            told += 1
            here.publish("a")
            if told % 100 == 0:
                await asyncio.sleep(0)
        assert await asyncio.wait_for(listening, 30) == 1000


async def test_who_left_hears_nothing(buses: tuple[Bus, Bus]) -> None:
    here, there = buses
    with there.subscribe("a") as gone:
        pass
    with there.subscribe("a") as stays:
        here.publish("a")
        await heard(stays)
    assert gone.drain() == []


@pytest.mark.needs("redis")
async def test_a_lost_redis_costs_no_hint_for_ever(redis: RedisServer) -> None:
    from ai.backend.infra.redis import RedisBus

    one, two = (RedisBus(redis.url, stream="restarted") for _ in range(2))
    with two.subscribe("a") as far, one.subscribe("a") as mine:
        for end in (one, two):
            await end.start()
        await heard(far)
        await asyncio.to_thread(redis.kill)
        one.publish("a", 1)
        while (await heard(mine))[1] != 1:
            pass
        far.drain()
        await asyncio.to_thread(redis.start)
        await heard(far)
        far.drain()
        one.publish("a")
        await heard(far)
    await one.stop()
    await two.stop()


@pytest.fixture(params=ADAPTERS)
async def limiters(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Limiter, Limiter]]:
    if request.param == "memory":
        limiter = RateLimiter()
        yield limiter, limiter
        return
    from ai.backend.infra.redis import RedisRateLimiter

    prefix = f"test{next(_numbers)}:"
    url = request.getfixturevalue("redis").url
    ends = [RedisRateLimiter(url, prefix=prefix, timeout_s=30) for _ in range(2)]
    yield ends[0], ends[1]
    for end in ends:
        await end.close()


async def test_requests_are_counted_together_and_by_key(limiters: tuple[Limiter, Limiter]) -> None:
    here, there = limiters
    left = []
    for i in range(5):
        allowance = await (here if i % 2 else there).count("k", 5)
        assert allowance is not None
        left.append(allowance.remaining)
    assert left == [4, 3, 2, 1, 0]
    for limiter in limiters:
        with pytest.raises(RateLimitExceeded) as refusal:
            await limiter.count("k", 5)
        assert WINDOW_S - STEP_S <= refusal.value.data["retry_after"] <= WINDOW_S
    assert await there.count("other", 5) is not None
    assert await there.count("k", None) is None
    assert await there.count("k", 0) is None
    assert await there.count("k", 6) is not None, "those that were refused are not counted"


async def test_a_burst_is_counted_exactly(limiters: tuple[Limiter, Limiter]) -> None:
    outcomes = await asyncio.gather(*(limiters[i % 2].count("b", 30) for i in range(60)), return_exceptions=True)
    assert sum(isinstance(outcome, RateLimitExceeded) for outcome in outcomes) == 30


@pytest.mark.needs("redis")
async def test_without_redis_a_process_counts_alone() -> None:
    from ai.backend.infra.redis import RedisRateLimiter

    limiter = RedisRateLimiter("redis://127.0.0.1:1/0")
    assert await limiter.count("k", 1) is not None
    with pytest.raises(RateLimitExceeded):
        await limiter.count("k", 1)
    await limiter.close()
