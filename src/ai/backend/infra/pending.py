"""Limits the connections of a listener that have not been authenticated."""

from __future__ import annotations

import asyncio


class PendingConnections:
    """Tracks the tasks of unauthenticated connections by address, the oldest first.

    Over a limit the oldest is cancelled.
    """

    def __init__(self, max_total: int, max_of_address: int) -> None:
        self._max_total = max_total
        self._max_of_address = max_of_address
        self._tasks: dict[str, dict[asyncio.Task[None], None]] = {}
        self._count = 0

    def add(self, address: str, task: asyncio.Task[None]) -> None:
        """Adds an unauthenticated connection, and cancels an old one if there are too many.

        Evicts one of the same address if that has too many, else one of the address with the most.
        """
        self._tasks.setdefault(address, {})[task] = None
        self._count += 1
        task.add_done_callback(lambda _: self._remove(address, task))
        if len(self._tasks[address]) > self._max_of_address:
            self._evict_oldest(address)
        elif self._count > self._max_total:
            self._evict_oldest(max(self._tasks, key=lambda other: len(self._tasks[other])))

    def _evict_oldest(self, address: str) -> None:
        oldest_task = next(iter(self._tasks[address]))
        oldest_task.cancel()
        self._remove(address, oldest_task)

    def _remove(self, address: str, task: asyncio.Task[None]) -> None:
        tasks_of_address = self._tasks.get(address, {})
        if task in tasks_of_address:
            del tasks_of_address[task]
            self._count -= 1
            if not tasks_of_address:
                del self._tasks[address]
