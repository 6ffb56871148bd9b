"""An in-process bus of notifications that make loops run sooner. A notification may be lost; nothing may depend on
it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any


class Subscription:
    """An endless async iterator of ``(topic, payload)``, oldest first."""

    def __init__(self, limit: int) -> None:
        self._queue: asyncio.Queue[tuple[str, Any]] = asyncio.Queue(limit)

    def put(self, topic: str, payload: Any) -> None:
        if self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait((topic, payload))

    async def get(self) -> tuple[str, Any]:
        return await self._queue.get()

    def drain(self) -> list[tuple[str, Any]]:
        """Returns everything that has arrived, without waiting."""
        return [self._queue.get_nowait() for _ in range(self._queue.qsize())]

    def __aiter__(self) -> AsyncIterator[tuple[str, Any]]:
        return self

    async def __anext__(self) -> tuple[str, Any]:
        return await self._queue.get()


class Bus:
    """Publishes to subscribers by exact topic; never blocks a publisher."""

    def __init__(self) -> None:
        self._subscriptions: dict[str, set[Subscription]] = {}

    def publish(self, topic: str, payload: Any = None) -> None:
        for subscription in self._subscriptions.get(topic, ()):
            subscription.put(topic, payload)

    @contextmanager
    def subscribe(self, *topics: str, limit: int = 256) -> Iterator[Subscription]:
        """Receives the topics until the block ends; beyond ``limit`` unread messages the oldest are dropped."""
        subscription = Subscription(limit)
        for topic in topics:
            self._subscriptions.setdefault(topic, set()).add(subscription)
        try:
            yield subscription
        finally:
            for topic in topics:
                remaining = self._subscriptions[topic]
                remaining.discard(subscription)
                if not remaining:
                    del self._subscriptions[topic]


class Signal:
    """A flag for one waiter: any number of ``set`` calls wake it once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the flag and clears it; returns False if the time ran out."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True
