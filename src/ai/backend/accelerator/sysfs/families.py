"""Makes the plugin class of a packaged data file when the class is accessed as an attribute of this module.

``families:tt_n300`` is of ``data/tt-n300.toml``. The names are those of the entry points in ``pyproject.toml``.
"""

from __future__ import annotations

from functools import cache

from ai.backend.accelerator.sysfs.family import packaged_family, packaged_names
from ai.backend.accelerator.sysfs.plugin import SysfsPlugin, plugin_class


@cache
def __getattr__(name: str) -> type[SysfsPlugin]:
    key = name.replace("_", "-")
    if key not in packaged_names():
        raise AttributeError(f"no data file describes the family {key!r}")
    family_plugin = plugin_class(packaged_family(key))
    family_plugin.__module__, family_plugin.__qualname__ = __name__, name
    return family_plugin


def __dir__() -> list[str]:
    return [name.replace("-", "_") for name in packaged_names()]
