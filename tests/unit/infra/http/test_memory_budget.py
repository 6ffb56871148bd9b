from __future__ import annotations

import asyncio

import pytest

from ai.backend.common.errors import Unavailable
from ai.backend.infra.http.memory_budget import MemoryBudget


async def test_whoever_asks_for_too_much_waits_for_the_others() -> None:
    pot = MemoryBudget(10)
    assert await pot.take(7) == 7
    later = asyncio.create_task(pot.take(4))
    await asyncio.sleep(0)
    assert not later.done()
    pot.give(7)
    assert await later == 4
    assert pot.left == 6


async def test_more_than_there_is_gets_all_of_it() -> None:
    pot = MemoryBudget(10)
    assert await pot.take(50) == 10
    pot.give(10)
    assert pot.left == 10


async def test_patience_ends() -> None:
    pot = MemoryBudget(10, patience_s=0.0)
    await pot.take(10)
    with pytest.raises(Unavailable):
        await pot.take(1)
    assert pot.left == 0


async def test_a_waiter_that_goes_takes_nothing() -> None:
    pot = MemoryBudget(10)
    await pot.take(10)
    gone = asyncio.create_task(pot.take(5))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    pot.give(10)
    assert pot.left == 10
