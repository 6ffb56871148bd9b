"""Helpers of ``ai.backend.common.logging`` and ``ai.backend.agent.utils`` that v1 plugins use."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from typing import Any

__all__ = ["BraceStyleAdapter", "update_nested_dict"]


class _BraceMessage:
    __slots__ = ("_arguments", "_text")

    def __init__(self, text: object, arguments: tuple[Any, ...]) -> None:
        self._text = text
        self._arguments = arguments

    def __str__(self) -> str:
        return str(self._text).format(*self._arguments) if self._arguments else str(self._text)


class BraceStyleAdapter(logging.LoggerAdapter):  # type: ignore[type-arg]  # generic for type checkers only in 3.11
    """Logs messages whose arguments are filled in by ``str.format``."""

    def __init__(self, logger: logging.Logger, extra: Mapping[str, Any] | None = None) -> None:
        super().__init__(logger, dict(extra or {}))

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            msg, kwargs = self.process(msg, kwargs)  # type: ignore[assignment]  # any object may be a message
            kwargs.setdefault("stacklevel", 2)
            self.logger.log(level, _BraceMessage(msg, args), **kwargs)


def update_nested_dict(dest: MutableMapping[str, Any], additions: Mapping[str, Any]) -> None:
    """Merges ``additions`` into ``dest``: tables by key, lists by joining, other values by replacing."""
    for key, value in additions.items():
        present_value = dest.get(key)
        if isinstance(present_value, MutableMapping) and isinstance(value, Mapping):
            update_nested_dict(present_value, value)
        elif isinstance(present_value, list) and isinstance(value, list | tuple):
            present_value.extend(value)
        else:
            dest[key] = value
