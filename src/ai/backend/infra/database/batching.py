"""Writes values in batches. Values that arrive during a write form the next batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Any, Generic, TypeVar

DISK_FULL = "The disk of the database is full: free some room there. What was not acknowledged is not stored."

MAX_CHUNK_ITEMS = 500
"""The number of values in one statement, which every database accepts."""

T = TypeVar("T")


def chunks(items: Collection[T]) -> Iterator[list[T]]:
    """Splits the items into lists of at most ``MAX_CHUNK_ITEMS``."""
    item_list = list(items)
    return (item_list[start : start + MAX_CHUNK_ITEMS] for start in range(0, len(item_list), MAX_CHUNK_ITEMS))


class BatchWriter(Generic[T]):
    """Collects values from several callers, and writes one batch of at most ``max_values`` values at a time.

    ``write_batch`` returns the result of each value in order, or the exception that its caller gets. If it raises, all
    callers get that.
    """

    def __init__(self, write_batch: Callable[[list[T]], Awaitable[Sequence[Any]]], *, max_values: int) -> None:
        self._write = write_batch
        self._limit = max_values
        self._waiting: deque[tuple[T, asyncio.Future[Any]]] = deque()
        self._worker: asyncio.Task[None] | None = None

    async def put(self, item: T) -> Any:
        """Queues a value for the next batch, and returns the result of its write.

        A cancelled caller's value is written too.
        """
        result_future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, result_future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._write_batches(), name="batch-writer")
        return await result_future

    async def close(self) -> None:
        """Waits until all queued values are written."""
        if self._worker is not None:
            await asyncio.gather(self._worker, return_exceptions=True)

    async def _write_batches(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(self._limit, len(self._waiting)))]
            outcomes: Sequence[Any]
            try:
                outcomes = await self._write([item for item, _ in batch])
            except Exception as error:  # noqa: BLE001  # each caller gets it
                outcomes = [error] * len(batch)
            for (_, result_future), outcome in zip(batch, outcomes, strict=True):
                if result_future.cancelled():
                    continue
                if isinstance(outcome, BaseException):
                    result_future.set_exception(outcome)
                else:
                    result_future.set_result(outcome)
