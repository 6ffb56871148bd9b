"""Provides an in-process bus of notifications, which make loops run sooner.

A notification may be lost; nothing may depend on it.
"""

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
        """Returns all messages that have arrived, without waiting."""
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
        """Subscribes to the topics until the block ends.

        Beyond ``limit`` unread messages, the oldest messages are dropped.
        """
        subscription = Subscription(limit)
        for topic in topics:
            self._subscriptions.setdefault(topic, set()).add(subscription)
        try:
            yield subscription
        finally:
            for topic in topics:
                topic_subscriptions = self._subscriptions[topic]
                topic_subscriptions.discard(subscription)
                if not topic_subscriptions:
                    del self._subscriptions[topic]


class Signal:
    """Wakes one waiter. Any number of ``set`` calls before a wait count as one.

    A wait costs one future and one timer, and no cancellation: a process has thousands of loops that wait most of the
    time.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._is_set = True
        if self._waiter is not None:
            _wake(self._waiter)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the flag and clears it; returns False if the time ran out.

        Raises RuntimeError if another task waits already.
        """
        if self._waiter is not None:
            raise RuntimeError("a signal has one waiter")
        if not self._is_set:
            loop = asyncio.get_running_loop()
            waiter = self._waiter = loop.create_future()
            timer = None if timeout_s is None else loop.call_later(timeout_s, _wake, waiter)
            try:
                await waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        is_set, self._is_set = self._is_set, False
        return is_set


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
