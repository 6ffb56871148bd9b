"""A configuration store in memory: for tests and simulation, and the model that the contract suite is read from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from ai.backend.infra.config_store.port import GLOBAL, ConfigChange, ConfigScope, check_key, check_value


def covers(prefix: str, key: str) -> bool:
    """Whether ``key`` is ``prefix`` or below it."""
    return not prefix or key == prefix or key.startswith(prefix.rstrip("/") + "/")


class MemoryConfigStore:
    """Keeps its whole history."""

    def __init__(self) -> None:
        self._data: dict[ConfigScope, dict[str, str]] = {}
        self._history: list[ConfigChange] = []
        self._changed = asyncio.Condition()

    async def get(self, key: str, *, scopes: Sequence[ConfigScope] = (GLOBAL,)) -> str | None:
        check_key(key)
        return next((v for s in reversed(scopes) if (v := self._data.get(s, {}).get(key)) is not None), None)

    async def get_prefix(self, prefix: str, *, scopes: Sequence[ConfigScope] = (GLOBAL,)) -> dict[str, str]:
        merged: dict[str, str] = {}
        for scope in scopes:
            merged.update({k: v for k, v in self._data.get(scope, {}).items() if covers(prefix, k)})
        return dict(sorted(merged.items()))

    async def put_many(self, values: Mapping[str, str], *, scope: ConfigScope = GLOBAL) -> int:
        checked = {check_key(k): check_value(v) for k, v in values.items()}
        for key, value in checked.items():
            self._data.setdefault(scope, {})[key] = value
            self._record(scope, key, value)
        await self._notify()
        return len(self._history)

    async def delete(self, key: str, *, scope: ConfigScope = GLOBAL, prefix: bool = False) -> int:
        data = self._data.get(scope, {})
        gone = [k for k in data if (covers(key, k) if prefix else k == key)]
        for name in gone:
            del data[name]
            self._record(scope, name, None)
        await self._notify()
        return len(gone)

    async def watch(self, prefix: str, *, after: int | None = None) -> AsyncIterator[ConfigChange]:
        position = len(self._history) if after is None else after
        while True:
            async with self._changed:
                while position >= len(self._history):
                    await self._changed.wait()
            change = self._history[position]
            position += 1
            if covers(prefix, change.key):
                yield change

    async def revision(self) -> int:
        return len(self._history)

    def _record(self, scope: ConfigScope, key: str, value: str | None) -> None:
        self._history.append(ConfigChange(revision=len(self._history) + 1, scope=scope, key=key, value=value))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
