from __future__ import annotations

import asyncio

import pytest

from ai.backend.common.errors import Unavailable
from ai.backend.infra.http.routes import MemoryBudget


async def test_whoever_asks_for_too_much_waits_for_the_others() -> None:
    budget = MemoryBudget(10)
    assert await budget.acquire(7) == 7
    later = asyncio.create_task(budget.acquire(4))
    await asyncio.sleep(0)
    assert not later.done()
    budget.release(7)
    assert await later == 4
    assert budget.remaining == 6


async def test_more_than_there_is_gets_all_of_it() -> None:
    budget = MemoryBudget(10)
    assert await budget.acquire(50) == 10
    budget.release(10)
    assert budget.remaining == 10


async def test_patience_ends() -> None:
    budget = MemoryBudget(10, patience_s=0.0)
    await budget.acquire(10)
    with pytest.raises(Unavailable):
        await budget.acquire(1)
    assert budget.remaining == 0


async def test_a_waiter_that_goes_takes_nothing() -> None:
    budget = MemoryBudget(10)
    await budget.acquire(10)
    gone = asyncio.create_task(budget.acquire(5))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    budget.release(10)
    assert budget.remaining == 10
