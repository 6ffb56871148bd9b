"""Caches a configuration store, so that reads are answered while its server is unavailable."""

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
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.retry import Backoff

log = logging.getLogger(__name__)
T = TypeVar("T")
_RETRY_S, _RETRY_MAX_S, _RETRY_JITTER = 0.2, 2.0, 0.5
_REREAD_S = 300.0
"""The interval of full reads: a watch does not report deletions that were compacted away."""


class CachingConfigStore:
    """Reads from ``inner``, or from a copy of its values if ``inner`` does not answer within ``patience_s``.

    A watch updates the copy. Writes go to ``inner`` only. Reads raise Unavailable if the copy is needed, but was not
    read yet or has more than ``limit`` characters of keys and values.
    """

    def __init__(self, inner: ConfigStore, *, patience_s: float = 2.0, max_copy_bytes: int = 64 << 20) -> None:
        self.inner = inner
        self._patience_s = patience_s
        self._limit = max_copy_bytes
        self.copy: ConfigValues | None = None
        self._away_since: float | None = None
        self._recheck = Signal()
        self._task: asyncio.Task[None] | None = None

    @property
    def stale_s(self) -> float:
        """The seconds for which reads have been answered from the copy; 0 while the server answers."""
        return 0.0 if self._away_since is None else time.monotonic() - self._away_since

    async def start(self) -> None:
        """Starts to follow the server. The server may become available later."""
        self._task = asyncio.create_task(self._follow_server(), name="configuration")

    async def close(self) -> None:
        """Stops following the server. Safe without ``start`` and twice."""
        if self._task is not None:
            await cancel_all(self._task)
            self._task = None
        close_inner = getattr(self.inner, "close", None)
        if close_inner is not None:
            await close_inner()

    async def get(self, key: str, *, scopes: Sequence[ConfigScope] = (GLOBAL,)) -> str | None:
        check_key(key)
        return await self._read_or_copy(lambda: self.inner.get(key, scopes=scopes), lambda copy: copy.get(key, scopes))

    async def get_prefix(self, prefix: str, *, scopes: Sequence[ConfigScope] = (GLOBAL,)) -> dict[str, str]:
        return await self._read_or_copy(
            lambda: self.inner.get_prefix(prefix, scopes=scopes), lambda copy: copy.get_prefix(prefix, scopes)
        )

    async def put_many(self, values: Mapping[str, str], *, scope: ConfigScope = GLOBAL) -> int:
        revision = await self.inner.put_many(values, scope=scope)
        for key, value in values.items():
            self._update_copy(scope, key, value)
        return revision

    async def delete(self, key: str, *, scope: ConfigScope = GLOBAL, prefix: bool = False) -> int:
        removed_count = await self.inner.delete(key, scope=scope, prefix=prefix)
        if self.copy is not None:
            for removed_key in self.copy.get_prefix(key, (scope,)) if prefix else (key,):
                self._update_copy(scope, removed_key, None)
        return removed_count

    def watch(self, prefix: str, *, after: int | None = None) -> AsyncIterator[ConfigChange]:
        return self.inner.watch(prefix, after=after)

    async def revision(self) -> int:
        return await self.inner.revision()

    async def read_all(self) -> tuple[int, list[ConfigChange]]:
        return await self.inner.read_all()

    async def _read_or_copy(self, read_server: Callable[[], Awaitable[T]], read_copy: Callable[[ConfigValues], T]) -> T:
        if self._away_since is None:
            try:
                async with asyncio.timeout(self._patience_s):
                    return await read_server()
            except (Unavailable, TimeoutError) as e:
                self._mark_unavailable(e)
        if self.copy is None:
            raise Unavailable("The server of the shared configuration does not answer, and nothing of it is known yet.")
        return read_copy(self.copy)

    def _mark_unavailable(self, error: Exception) -> None:
        if self._away_since is None and self._task is not None:
            self._away_since = time.monotonic()
            reason = str(error) or f"no answer in {self._patience_s:g} s"
            log.warning("the shared configuration is read from memory until its server answers again: %s", reason)
        self._recheck.set()

    async def _follow_server(self) -> None:
        backoff = Backoff(_RETRY_S, _RETRY_MAX_S, jitter=_RETRY_JITTER)
        while True:
            try:
                revision = await self._reload_copy()
            except Exception as e:  # noqa: BLE001  # the next attempt may succeed
                self._mark_unavailable(e)
                await backoff.wait()
                continue
            backoff.reset()
            watch_task = asyncio.create_task(self._watch_server(revision))
            watch_task.add_done_callback(lambda _: self._recheck.set())
            try:
                await self._recheck.wait(_REREAD_S)
            finally:
                await cancel_all(watch_task)

    async def _reload_copy(self) -> int:
        """Reads the whole state again and marks the server as available."""
        await self._recheck.wait(0)
        revision, present_values = await self.inner.read_all()
        self.copy = ConfigValues()
        for change in present_values:
            self.copy.set(change.scope, change.key, change.value)
        self._check_size()
        if self._away_since is not None:
            log.warning("the server of the shared configuration answers again after %.0f s", self.stale_s)
            self._away_since = None
        return revision

    async def _watch_server(self, revision: int) -> None:
        try:
            async for change in self.inner.watch("", after=revision):
                self._update_copy(change.scope, change.key, change.value)
        except BackendError as e:
            log.warning("the shared configuration cannot be watched: %s", e)
            await asyncio.sleep(_RETRY_MAX_S)

    def _update_copy(self, scope: ConfigScope, key: str, value: str | None) -> None:
        if self.copy is not None:
            self.copy.set(scope, key, value)
            self._check_size()

    def _check_size(self) -> None:
        if self.copy is not None and self.copy.size > self._limit:
            log.warning("the shared configuration is too large to be remembered: over %d characters", self._limit)
            self.copy = None
