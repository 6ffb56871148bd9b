"""The bridge from blocking callers to the asyncio core: one event loop in a thread of its own.

One implementation serves both worlds: the asyncio classes of `func/`. A blocking class holds such an object and lends
its methods through :func:`blocking`, which keeps their parameters and results for type checkers.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


class Portal:
    """Runs coroutines on its own thread and returns their results to the calling thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="backendai-client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Wait for the coroutine. An interrupt of the waiting thread (Ctrl-C) cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[R]) -> Iterator[R]:
        async def following() -> list[R]:
            async for item in items:
                return [item]
            return []

        while found := self.run(following()):
            yield found[0]

    @contextmanager
    def enter(self, manager: AbstractAsyncContextManager[R]) -> Iterator[R]:
        value = self.run(_enter(manager))
        try:
            yield value
        except BaseException as error:
            if not self.run(_exit(manager, error)):
                raise
        else:
            self.run(_exit(manager, None))

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _enter(manager: AbstractAsyncContextManager[R]) -> R:
    return await manager.__aenter__()


async def _exit(manager: AbstractAsyncContextManager[Any], error: BaseException | None) -> bool:
    return bool(await manager.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None))


class Facade(Generic[T]):
    """Makes the methods of an asyncio object blocking."""

    def __init__(self, portal: Portal, inner: T) -> None:
        self._portal = portal
        self._inner = inner


def blocking(method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Facade[T], P], R]:
    """Makes a coroutine method of ``T`` blocking in its facade."""

    @functools.wraps(method)
    def call(self: Facade[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._portal.run(method(self._inner, *args, **kwargs))

    return call


def iterating(
    method: Callable[Concatenate[T, P], AsyncIterator[R]],
) -> Callable[Concatenate[Facade[T], P], Iterator[R]]:
    """Makes an asynchronous generator method of ``T`` blocking in its facade."""

    @functools.wraps(method)
    def call(self: Facade[T], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return self._portal.iterate(method(self._inner, *args, **kwargs))

    return call
