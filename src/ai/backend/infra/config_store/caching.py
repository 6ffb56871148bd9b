"""Caches a configuration store, to answer while its server is unavailable."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.infra.bus import Signal
from ai.backend.infra.config_store.memory import ConfigValues
from ai.backend.infra.config_store.store import GLOBAL, ConfigChange, ConfigScope, ConfigStore, check_key
from ai.backend.infra.retry import Backoff

log = logging.getLogger(__name__)
T = TypeVar("T")
_RETRY_S, _RETRY_MAX_S, _RETRY_JITTER = 0.2, 2.0, 0.5
_RELEARN_S = 300.0
"""The interval of full reads: a watch does not report deletions that were compacted away."""


class CachingConfigStore:
    """Reads from ``inner``, or from a copy of its last state while the server is unavailable.

    As long as the server answers, reads are its own. When it does not, they are answered at once from a copy of all
    values, which a watch has kept up to date, until the server is back and the copy has been read anew. Writes are
    never taken by anybody but the server. Until the first copy is read, and beyond ``limit`` characters of keys and
    values, there is nothing to answer from, and reads raise Unavailable as those of ``inner`` do.

    Args:
        patience_s: how long one read may wait for the server.
        limit: characters, of all keys and values.
    """

    def __init__(self, inner: ConfigStore, *, patience_s: float = 2.0, limit: int = 64 << 20) -> None:
        self.inner = inner
        self._patience_s = patience_s
        self._limit = limit
        self._known: ConfigValues | None = None
        self._away_since: float | None = None
        self._doubted = Signal()
        self._task: asyncio.Task[None] | None = None

    @property
    def stale_s(self) -> float:
        """The seconds for which reads have been answered from the copy; 0 while the server answers."""
        return 0.0 if self._away_since is None else time.monotonic() - self._away_since

    async def start(self) -> None:
        """Starts to follow the server, which may become available later."""
        self._task = asyncio.create_task(self._follow(), name="configuration")

    async def close(self) -> None:
        """Stops. Safe without ``start`` and twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        close = getattr(self.inner, "close", None)
        if close is not None:
            await close()

    # ---- the port ----

    async def get(self, key: str, *, scopes: Sequence[ConfigScope] = (GLOBAL,)) -> str | None:
        check_key(key)
        return await self._read(lambda: self.inner.get(key, scopes=scopes), lambda known: known.get(key, scopes))

    async def get_prefix(self, prefix: str, *, scopes: Sequence[ConfigScope] = (GLOBAL,)) -> dict[str, str]:
        return await self._read(
            lambda: self.inner.get_prefix(prefix, scopes=scopes), lambda known: known.get_prefix(prefix, scopes)
        )

    async def put_many(self, values: Mapping[str, str], *, scope: ConfigScope = GLOBAL) -> int:
        revision = await self.inner.put_many(values, scope=scope)
        for key, value in values.items():
            self._note(scope, key, value)
        return revision

    async def delete(self, key: str, *, scope: ConfigScope = GLOBAL, prefix: bool = False) -> int:
        gone = await self.inner.delete(key, scope=scope, prefix=prefix)
        if self._known is not None:
            for name in self._known.get_prefix(key, (scope,)) if prefix else (key,):
                self._note(scope, name, None)
        return gone

    def watch(self, prefix: str, *, after: int | None = None) -> AsyncIterator[ConfigChange]:
        return self.inner.watch(prefix, after=after)

    async def revision(self) -> int:
        return await self.inner.revision()

    async def present(self) -> tuple[int, list[ConfigChange]]:
        return await self.inner.present()

    # ---- reading ----

    async def _read(self, ask: Callable[[], Awaitable[T]], recall: Callable[[ConfigValues], T]) -> T:
        if self._away_since is None:
            try:
                async with asyncio.timeout(self._patience_s):
                    return await ask()
            except (Unavailable, TimeoutError) as e:
                self._lose(e)
        if self._known is None:
            raise Unavailable("The server of the shared configuration does not answer, and nothing of it is known yet.")
        return recall(self._known)

    def _lose(self, why: Exception) -> None:
        if self._away_since is None and self._task is not None:
            self._away_since = time.monotonic()
            log.warning("the shared configuration is read from memory until its server answers again: %s", why)
        self._doubted.set()

    # ---- following ----

    async def _follow(self) -> None:
        backoff = Backoff(_RETRY_S, _RETRY_MAX_S, jitter=_RETRY_JITTER)
        while True:
            try:
                revision = await self._learn()
            except Exception as e:  # noqa: BLE001  # whatever the server says, it is to be asked again
                self._lose(e)
                await backoff.wait()
                continue
            backoff.reset()
            watching = asyncio.create_task(self._watch(revision))
            watching.add_done_callback(lambda _: self._doubted.set())
            try:
                await self._doubted.wait(_RELEARN_S)
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    async def _learn(self) -> int:
        """Reads the whole state again and marks the server as available."""
        await self._doubted.wait(0)
        revision, values = await self.inner.present()
        known = ConfigValues()
        for change in values:
            known.set(change.scope, change.key, change.value)
        self._known = known
        self._check_size()
        if self._away_since is not None:
            log.warning("the server of the shared configuration answers again after %.0f s", self.stale_s)
            self._away_since = None
        return revision

    async def _watch(self, revision: int) -> None:
        try:
            async for change in self.inner.watch("", after=revision):
                self._note(change.scope, change.key, change.value)
        except BackendError as e:
            log.warning("the shared configuration cannot be watched: %s", e)
            await asyncio.sleep(_RETRY_MAX_S)

    def _note(self, scope: ConfigScope, key: str, value: str | None) -> None:
        if self._known is not None:
            self._known.set(scope, key, value)
            self._check_size()

    def _check_size(self) -> None:
        if self._known is not None and self._known.size > self._limit:
            log.warning("the shared configuration is too large to be remembered: over %d characters", self._limit)
            self._known = None
