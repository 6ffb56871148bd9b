"""The number of requests under way follows what the server bears."""

from __future__ import annotations

import asyncio

from ai.backend.node.kube_api.concurrency import ConcurrencyLimit


async def test_no_more_than_the_limit_run_and_the_others_in_their_order() -> None:
    limit, order, most = ConcurrencyLimit(initial=3), [], 0

    async def request(number: int) -> None:
        nonlocal most
        async with limit.slot():
            order.append(number)
            most = max(most, limit.active)
            await asyncio.sleep(0)

    await asyncio.gather(*(request(i) for i in range(20)))
    assert order == list(range(20))
    assert most == 3
    assert limit.active == 0


async def test_success_at_the_limit_raises_it_and_refusal_lowers_it_once() -> None:
    limit = ConcurrencyLimit(initial=10, maximum=12)
    limit.record_success()
    assert limit.limit == 10  # it was not used up
    async with asyncio.TaskGroup() as group:
        released = asyncio.Event()

        async def hold() -> None:
            async with limit.slot():
                await released.wait()

        for _ in range(12):
            group.create_task(hold())
        await asyncio.sleep(0)
        for _ in range(100):
            limit.record_success()
        assert limit.limit == 12
        limit.record_overload()
        limit.record_overload()
        assert limit.limit == 8
        released.set()
    assert limit.active == 0


async def test_who_gives_up_waiting_takes_no_slot() -> None:
    limit = ConcurrencyLimit(initial=1, minimum=1)
    async with limit.slot():
        waiting = [asyncio.ensure_future(limit.slot().__aenter__()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
    waiting[1].cancel()  # it was admitted at this moment, and has not run yet
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert waiting[2].done()
    assert limit.active == 1
