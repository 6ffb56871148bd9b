"""Makes asyncio objects of the SDK blocking. Their methods run on an event loop in a separate thread."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Generic, TypeVar

from ai.backend.client.types import Remote

T = TypeVar("T")
R = TypeVar("R")


class Portal:
    """Runs coroutines on its own thread and returns their results to the calling thread."""

    def __init__(self) -> None:
        import asyncio

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="backendai-client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Runs a coroutine on the portal's thread and returns its result.

        An interrupt of the waiting thread (Ctrl-C) cancels the coroutine.
        """
        import asyncio

        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def block(self, value: Any) -> Any:
        """Converts the return value of an asynchronous method into a blocking value.

        A coroutine is run to its result. Asynchronous generators and context managers become ordinary ones, and other
        objects of the SDK that make requests become a :class:`Blocking`. Any other value is returned as it is.
        """
        if inspect.iscoroutine(value):
            return self.block(self.run(value))
        if inspect.isasyncgen(value):
            return self._iterate(value)
        if isinstance(value, AbstractAsyncContextManager):
            return self._enter_context(value)
        return Blocking(self, value) if isinstance(value, Remote) else value

    def _iterate(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        async def next_items() -> list[Any]:
            async for item in items:
                return [item]
            return []

        while next_batch := self.run(next_items()):
            yield next_batch[0]

    @contextmanager
    def _enter_context(self, manager: AbstractAsyncContextManager[Any]) -> Iterator[Any]:
        async def leave(error: BaseException | None) -> bool | None:
            return await manager.__aexit__(
                type(error) if error else None, error, error.__traceback__ if error else None
            )

        async def enter() -> Any:
            return await manager.__aenter__()

        entered_value = self.run(enter())
        try:
            yield self.block(entered_value)
        except BaseException as error:
            if not self.run(leave(error)):
                raise
        else:
            self.run(leave(None))

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Blocking(Generic[T]):
    """Makes an asynchronous object of the SDK blocking, with the same attributes and methods.

    Coroutine methods wait for their results, asynchronous generators are iterators, asynchronous contexts are entered
    with ``with``, and the handles and streams that these return are blocking too.
    """

    def __init__(self, portal: Portal, inner: T) -> None:
        self._portal = portal
        self._inner = inner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._portal.block(self._inner(*args, **kwargs))  # type: ignore[operator]  # a TypeError if it is not callable

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._inner, name)
        if not inspect.isroutine(value):
            return self._portal.block(value)

        @functools.wraps(value)
        def call_blocking(*args: Any, **kwargs: Any) -> Any:
            return self._portal.block(value(*args, **kwargs))

        return call_blocking

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *dir(self._inner)]
