"""Converts settings to the form that v1 plugins expect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ai.backend.common.errors import InvalidInput

_SECTIONS = ("agent", "container", "resource", "debug", "plugins", "container-logs", "kernel-lifecycles")


class LocalConfig(dict[str, Any]):
    """Holds the agent's configuration as v1 passes it: only ``local-config`` of the plugin's settings.

    A key that is not there says so by its whole name.
    """

    def __init__(self, given: Mapping[str, Any], path: str = "") -> None:
        sections: dict[str, Any] = {key: {} for key in _SECTIONS} if not path else {}
        super().__init__(
            {
                key: LocalConfig(value, f"{path}{key}.") if isinstance(value, Mapping) else value
                for key, value in {**sections, **given}.items()
            }
        )
        self._path = path

    def __missing__(self, key: str) -> Any:
        raise KeyError(f"{self._path}{key} of the local configuration: set it in local-config of the plugin's settings")


def texts(given: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Converts settings to texts, as v1 plugins read them from etcd.

    Raises:
        InvalidInput: a value that no text stands for.
    """
    result: dict[str, Any] = {}
    for key, value in given.items():
        match value:
            case Mapping():
                result[key] = texts(value, f"{path}.{key}")
            case bool():
                result[key] = "true" if value else "false"
            case str() | int() | float():
                result[key] = str(value)
            case _:
                reason = "a v1 plugin takes texts, numbers and tables"
                raise InvalidInput(f"{path}.{key}: {reason}", data={f"{path}.{key}": reason})
    return result
