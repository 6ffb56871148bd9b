"""Defines the interface of configuration stores. One contract suite runs on all of them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

from ai.backend.common.errors import InvalidInput

_PATH_PART = re.compile(r"[^/\x00-\x1f]{1,255}")
MAX_VALUE = 1 << 20


class ScopeKind(StrEnum):
    """Lists the kinds of scopes, the widest first. If scopes are merged, the narrower scope wins (peer facts 4.5)."""

    GLOBAL = "global"
    RESOURCE_GROUP = "resource-group"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class ConfigScope:
    """Names the scope of a configuration key. ``name`` is the resource group or agent; empty for the global scope."""

    kind: ScopeKind
    name: str = ""

    def __post_init__(self) -> None:
        if (self.kind is ScopeKind.GLOBAL) == bool(self.name):
            raise InvalidInput(f"a {self.kind} scope {'has no' if self.name else 'needs a'} name")

    @property
    def path(self) -> str:
        return self.kind if not self.name else f"{self.kind}/{self.name}"


GLOBAL = ConfigScope(ScopeKind.GLOBAL)
MANAGERS = "nodes/managers"
"""The prefix below which each manager publishes its address for agents."""


class ConfigChange(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a change of a configuration key.

    ``value`` is None for a deletion; ``revision`` grows in the order of commits.
    """

    revision: int
    scope: ConfigScope
    key: str
    value: str | None


def check_key(key: str) -> str:
    """Returns ``key`` if it is a slash-separated path of at most 1,024 characters. Raises InvalidInput."""
    if len(key) > 1024 or not all(_PATH_PART.fullmatch(path_part) for path_part in key.split("/")):
        raise InvalidInput(f"not a configuration key: {key[:64]!r}", data={"key": "malformed"})
    return key


def check_value(value: str) -> str:
    if len(value.encode()) > MAX_VALUE:
        raise InvalidInput("a configuration value is larger than 1 MiB", data={"value": "too large"})
    return value


class ConfigStore(Protocol):
    """Stores text values by slash-separated paths. Every method may raise Unavailable."""

    async def get(self, key: str, *, scopes: Sequence[ConfigScope] = (GLOBAL,)) -> str | None:
        """Returns the value of the last scope in ``scopes`` that has the key.

        Name scopes from the widest to the narrowest.
        """

    async def get_prefix(self, prefix: str, *, scopes: Sequence[ConfigScope] = (GLOBAL,)) -> dict[str, str]:
        """Returns all keys at and below ``prefix``, with the values of ``scopes`` merged.

        Whole path parts only; "" is everything.
        """

    async def put_many(self, values: Mapping[str, str], *, scope: ConfigScope = GLOBAL) -> int:
        """Sets several keys in one step, all or none, and returns the revision."""

    async def delete(self, key: str, *, scope: ConfigScope = GLOBAL, prefix: bool = False) -> int:
        """Removes a key, or all keys at and below a prefix, and returns the number of removed keys."""

    def watch(self, prefix: str, *, after: int | None = None) -> AsyncIterator[ConfigChange]:
        """Yields changes at and below ``prefix`` in every scope, in order of revision. The iteration never ends.

        ``after`` resumes behind a revision, or with all present values if older changes were dropped; None begins with
        the next change.
        """

    async def revision(self) -> int: ...

    async def read_all(self) -> tuple[int, list[ConfigChange]]:
        """Returns every value in every scope, the oldest first, and the revision of this state."""
