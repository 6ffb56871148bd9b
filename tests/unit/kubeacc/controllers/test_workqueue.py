"""The work queue: each key once, one worker for a key, delays and repetitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from ai.backend.common.errors import Conflict
from ai.backend.infra.loop import cancel_all
from ai.backend.kubeacc.controllers.workqueue import WorkQueue


@asynccontextmanager
async def running(reconcile: Callable[[str], Awaitable[float | None]]) -> AsyncIterator[WorkQueue[str]]:
    queue = WorkQueue("test", reconcile, workers=4)
    task = asyncio.ensure_future(queue.run())
    try:
        yield queue
    finally:
        await cancel_all(task)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_key_is_worked_on_once_for_many_changes_and_never_twice_at_once() -> None:
    calls: list[str] = []
    active = 0
    go = asyncio.Event()

    async def reconcile(key: str) -> float | None:
        nonlocal active
        calls.append(key)
        active += 1
        assert active == 1
        await go.wait()
        active -= 1
        return None

    async with running(reconcile) as queue:
        for _ in range(5):
            queue.add("a")
        await turns()
        assert calls == ["a"]
        for _ in range(5):
            queue.add("a")
        go.set()
        await turns()
        assert calls == ["a", "a"]
        assert queue.is_idle


async def test_keys_are_worked_on_in_parallel() -> None:
    started: list[str] = []
    go = asyncio.Event()

    async def reconcile(key: str) -> float | None:
        started.append(key)
        await go.wait()
        return None

    async with running(reconcile) as queue:
        for key in "abcdef":
            queue.add(key)
        await turns()
        assert started == ["a", "b", "c", "d"]
        go.set()
        await turns()
        assert sorted(started) == list("abcdef")


async def test_a_failure_is_repeated_and_a_delay_is_cut_short() -> None:
    calls: list[str] = []

    async def reconcile(key: str) -> float | None:
        calls.append(key)
        if key == "bad" and len(calls) < 3:
            raise Conflict("changed")
        return 0.0 if len(calls) == 1 else 3600.0

    async with running(reconcile) as queue:
        queue.add("good")
        await turns(50)
        assert calls == ["good", "good"]
        queue.add_after("good", 7200.0)
        queue.add("good")
        await turns()
        assert calls == ["good"] * 3
