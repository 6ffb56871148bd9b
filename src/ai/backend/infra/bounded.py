"""Runs many coroutines, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

from ai.backend.infra.loop import cancel_all

T = TypeVar("T")
R = TypeVar("R")


async def bounded(items: Iterable[T], function: Callable[[T], Awaitable[R]], limit: int) -> AsyncIterator[R]:
    """Yields the results of ``function`` for each item, in the order of completion.

    At most ``limit`` coroutines run at a time. Raises the first error.
    """
    item_iterator = iter(items)
    tasks: set[asyncio.Task[R]] = set()
    finished_tasks: asyncio.Queue[asyncio.Task[R]] = asyncio.Queue()

    async def run_work(item: T) -> R:
        return await function(item)

    try:
        while True:
            while len(tasks) < limit and (item := next(item_iterator, None)) is not None:
                task = asyncio.create_task(run_work(item))
                task.add_done_callback(finished_tasks.put_nowait)
                tasks.add(task)
            if not tasks:
                return
            task = await finished_tasks.get()
            tasks.discard(task)
            yield task.result()
    finally:
        await cancel_all(*tasks)
