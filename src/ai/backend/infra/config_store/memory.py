"""Stores configuration in memory, for tests and simulation, and as the reference model of the contract suite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from ai.backend.infra.config_store.store import GLOBAL, ConfigChange, ConfigScope, check_key, check_value


def covers(prefix: str, key: str) -> bool:
    """Returns True if ``key`` is ``prefix`` itself or lies below ``prefix``."""
    return not prefix or key == prefix or key.startswith(prefix.rstrip("/") + "/")


class ConfigValues:
    """Holds configuration values by scope and key, and implements the reads of a store."""

    def __init__(self) -> None:
        self._data: dict[ConfigScope, dict[str, str]] = {}
        self.size = 0
        """The number of characters of all keys and values."""

    def get(self, key: str, scopes: Sequence[ConfigScope]) -> str | None:
        return next(
            (value for scope in reversed(scopes) if (value := self._data.get(scope, {}).get(key)) is not None), None
        )

    def get_prefix(self, prefix: str, scopes: Sequence[ConfigScope]) -> dict[str, str]:
        value_of_key: dict[str, str] = {}
        for scope in scopes:
            value_of_key.update({key: value for key, value in self._data.get(scope, {}).items() if covers(prefix, key)})
        return dict(sorted(value_of_key.items()))

    def set(self, scope: ConfigScope, key: str, value: str | None) -> None:
        """Sets a value. The value None removes the key."""
        values_of_scope = self._data.setdefault(scope, {})
        old_value = values_of_scope.pop(key, None)
        if old_value is not None:
            self.size -= len(key) + len(old_value)
        if value is not None:
            values_of_scope[key] = value
            self.size += len(key) + len(value)


class MemoryConfigStore:
    """Stores configuration in memory with its whole history."""

    def __init__(self) -> None:
        self._values = ConfigValues()
        self._history: list[ConfigChange] = []
        self._changed = asyncio.Condition()

    async def get(self, key: str, *, scopes: Sequence[ConfigScope] = (GLOBAL,)) -> str | None:
        return self._values.get(check_key(key), scopes)

    async def get_prefix(self, prefix: str, *, scopes: Sequence[ConfigScope] = (GLOBAL,)) -> dict[str, str]:
        return self._values.get_prefix(prefix, scopes)

    async def put_many(self, values: Mapping[str, str], *, scope: ConfigScope = GLOBAL) -> int:
        checked_values = {check_key(raw_key): check_value(raw_value) for raw_key, raw_value in values.items()}
        for key, value in checked_values.items():
            self._record(scope, key, value)
        await self._notify()
        return len(self._history)

    async def delete(self, key: str, *, scope: ConfigScope = GLOBAL, prefix: bool = False) -> int:
        removed_keys = [
            stored_key for stored_key in self._values.get_prefix(key, (scope,)) if prefix or stored_key == key
        ]
        for removed_key in removed_keys:
            self._record(scope, removed_key, None)
        await self._notify()
        return len(removed_keys)

    async def watch(self, prefix: str, *, after: int | None = None) -> AsyncIterator[ConfigChange]:
        last_revision = len(self._history) if after is None else after
        while True:
            async with self._changed:
                while last_revision >= len(self._history):
                    await self._changed.wait()
            change = self._history[last_revision]
            last_revision += 1
            if covers(prefix, change.key):
                yield change

    async def revision(self) -> int:
        return len(self._history)

    async def read_all(self) -> tuple[int, list[ConfigChange]]:
        newest_changes = {(change.scope, change.key): change for change in self._history}
        present_changes = [change for change in newest_changes.values() if change.value is not None]
        return len(self._history), sorted(present_changes, key=lambda change: change.revision)

    def _record(self, scope: ConfigScope, key: str, value: str | None) -> None:
        self._values.set(scope, key, value)
        self._history.append(ConfigChange(revision=len(self._history) + 1, scope=scope, key=key, value=value))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
