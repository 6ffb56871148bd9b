"""Shared configuration that administrators may change while daemons run (spec 03-01, "Shared config")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.config_store import ConfigStore
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation

_MAX_DEPTH = 16


class ConfigService:
    """Superadmins only; the global scope."""

    def __init__(self, store: ConfigStore) -> None:
        self._store = store

    async def get(self, caller: Caller, key: str, *, prefix: bool = False) -> Any:
        """The value of a key or None; with ``prefix`` what is below it, as nested objects.

        A key that has both a value and keys below it keeps the value under the empty name.
        """
        _check(caller)
        if not prefix:
            return await self._store.get(key)
        return planted(key, await self._store.get_prefix(key.rstrip("/")))

    async def set(self, caller: Caller, key: str, value: Any) -> None:
        """Set one key; an object sets all that is in it below the key, all or nothing, and leaves the rest.

        Raises:
            InvalidInput: a list or null is no value, or the object is nested too deeply.
        """
        _check(caller)
        values = dict(flattened(key, value))
        if not values:
            raise InvalidInput("there is nothing to set", data={"value": "empty"})
        await self._store.put_many(values)

    async def delete(self, caller: Caller, key: str, *, prefix: bool = False) -> int:
        """Remove a key, or all at and below it; how many there were."""
        _check(caller)
        return await self._store.delete(key.rstrip("/"), prefix=prefix)


def _check(caller: Caller) -> None:
    require(caller, Operation.CONFIGURE)


def planted(key: str, values: Mapping[str, str]) -> dict[str, Any]:
    """What is at and below ``key``, as nested objects; of a key that has both, the value is under the empty name."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        _plant(tree, [part for part in path.removeprefix(key.rstrip("/")).split("/") if part], value)
    return tree


def _plant(tree: dict[str, Any], parts: list[str], value: str) -> None:
    node = tree
    for part in parts[:-1]:
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            child = node[part] = {"": child}
        node = child
    name = parts[-1] if parts else ""
    if isinstance(node.get(name), dict):
        node = node[name]
        name = ""
    node[name] = value


def flattened(key: str, value: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Path and text of everything in ``value``, below ``key``. Raises InvalidInput for what is no value."""
    if isinstance(value, Mapping):
        if depth >= _MAX_DEPTH:
            raise InvalidInput("the value is nested too deeply", data={"value": "too deep"})
        for name, below in value.items():
            path = "/".join(part for part in (key.rstrip("/"), str(name)) if part)
            yield from flattened(path, below, depth + 1)
    elif isinstance(value, bool):
        yield key, "true" if value else "false"
    elif isinstance(value, str | int | float):
        yield key, str(value)
    else:
        raise InvalidInput(f"{key}: neither text, a number, true or false, nor an object", data={"value": "unusable"})
