"""Reads and changes the shared configuration (spec 03-01, "Shared config")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.config_store import ConfigStore
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation

_MAX_NESTING = 16


class ConfigService:
    """Lets superadmins read and change the global scope of the shared configuration. Other callers get Forbidden."""

    def __init__(self, store: ConfigStore) -> None:
        self._store = store

    async def get(self, caller: Caller, key: str, *, prefix: bool = False) -> Any:
        """Returns the value of a key, or None. With ``prefix`` it returns the keys below it as nested objects, with the
        key's own value under the empty name.
        """
        require(caller, Operation.CONFIGURE)
        if not prefix:
            return await self._store.get(key)
        return nest_values(key, await self._store.get_prefix(key.rstrip("/")))

    async def is_true(self, key: str) -> bool:
        """Returns True if the value of a key is ``true``; used by the manager itself, without a caller."""
        return (await self._store.get(key) or "").strip().lower() == "true"

    async def set(self, caller: Caller, key: str, value: Any) -> None:
        """Sets the value of one key; the entries of an object are set as keys below the key. Raises InvalidInput for
        lists, null, and deep nesting.
        """
        require(caller, Operation.CONFIGURE)
        values = dict(flatten_value(key, value))
        if not values:
            raise InvalidInput("there is nothing to set", data={"value": "empty"})
        await self._store.put_many(values)

    async def delete(self, caller: Caller, key: str, *, prefix: bool = False) -> int:
        """Removes a key, or with ``prefix`` all keys at and below it. Returns the number of removed keys.

        Raises:
            InvalidInput: the key is the root, below which is the whole configuration.
        """
        require(caller, Operation.CONFIGURE)
        if not key.strip("/"):
            raise InvalidInput("name a key to delete; the root holds the whole configuration", data={"key": key})
        return await self._store.delete(key.rstrip("/"), prefix=prefix)


def nest_values(key: str, values: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values at and below ``key`` as nested objects, one level for each part of a key.

    If a key has a value and keys below it, the value gets the empty name in the object.
    """
    tree: dict[str, Any] = {}
    for path, value in values.items():
        node, path_parts = tree, [path_part for path_part in path.removeprefix(key.rstrip("/")).split("/") if path_part]
        for path_part in path_parts[:-1]:
            child = node.setdefault(path_part, {})
            if not isinstance(child, dict):
                child = node[path_part] = {"": child}
            node = child
        name = path_parts[-1] if path_parts else ""
        if isinstance(node.get(name), dict):
            node, name = node[name], ""
        node[name] = value
    return tree


def flatten_value(key: str, value: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yields the path and text of every value in ``value``. Raises InvalidInput for unsupported values."""
    if isinstance(value, Mapping):
        if depth >= _MAX_NESTING:
            raise InvalidInput("the value is nested too deeply", data={"value": "too deep"})
        for name, child in value.items():
            path = "/".join(path_part for path_part in (key.rstrip("/"), str(name)) if path_part)
            yield from flatten_value(path, child, depth + 1)
    elif isinstance(value, bool):
        yield key, "true" if value else "false"
    elif isinstance(value, str | int | float):
        yield key, str(value)
    else:
        raise InvalidInput(f"{key}: neither text, a number, true or false, nor an object", data={"value": "unusable"})
