"""Writes values in batches: those that arrive while one batch is written are the next one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Any, Generic, TypeVar

CHUNK = 500
"""The number of values in one statement, which every database accepts."""

T = TypeVar("T")


def chunks(items: Collection[T]) -> Iterator[list[T]]:
    """Splits the items into lists of at most ``CHUNK``."""
    values = list(items)
    return (values[start : start + CHUNK] for start in range(0, len(values), CHUNK))


class BatchWriter(Generic[T]):
    """Writes one batch at a time, with at most ``limit`` values.

    ``write`` returns the result of each value in order, or the exception that its caller gets. If it raises, all
    callers get that.
    """

    def __init__(self, write: Callable[[list[T]], Awaitable[Sequence[Any]]], *, limit: int) -> None:
        self._write = write
        self._limit = limit
        self._waiting: deque[tuple[T, asyncio.Future[Any]]] = deque()
        self._worker: asyncio.Task[None] | None = None

    async def put(self, item: T) -> Any:
        """Returns the result of the item once it is written. It is also written if the caller is cancelled."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, done))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work(), name="batch-writer")
        return await done

    async def close(self) -> None:
        """Waits for the values that were put."""
        if self._worker is not None:
            await asyncio.gather(self._worker, return_exceptions=True)

    async def _work(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(self._limit, len(self._waiting)))]
            outcomes: Sequence[Any]
            try:
                outcomes = await self._write([item for item, _ in batch])
            except Exception as error:  # noqa: BLE001  # each caller gets it
                outcomes = [error] * len(batch)
            for (_, done), outcome in zip(batch, outcomes, strict=True):
                if done.cancelled():
                    continue
                if isinstance(outcome, BaseException):
                    done.set_exception(outcome)
                else:
                    done.set_result(outcome)
